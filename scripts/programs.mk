# SPDX-License-Identifier: GPL-2.0
# The C programs of the tests: selftests/NAME.c and selftests/nvme/NAME.c become BIN/NAME.

CFLAGS := -O2 -g -Wall -Wextra -Werror -std=gnu11
LDLIBS := -lrdmacm -libverbs -lpthread

SOURCES := $(wildcard selftests/*.c selftests/nvme/*.c)
PROGRAMS := $(patsubst %.c,$(BIN)/%,$(notdir $(SOURCES)))

vpath %.c selftests selftests/nvme

all: $(PROGRAMS)

$(BIN)/%: %.c $(wildcard selftests/*.h)
	@mkdir -p $(BIN)
	$(CC) $(CFLAGS) -o $@ $< $(LDLIBS)
