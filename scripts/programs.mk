# SPDX-License-Identifier: GPL-2.0
# The C programs of the tests: selftests/NAME.c becomes BIN/NAME.

CFLAGS := -O2 -g -Wall -Wextra -Werror -std=gnu11
LDLIBS := -lrdmacm -libverbs -lpthread

SOURCES := $(wildcard selftests/*.c)
PROGRAMS := $(patsubst selftests/%.c,$(BIN)/%,$(SOURCES))

all: $(PROGRAMS)

$(BIN)/%: selftests/%.c $(wildcard selftests/*.h)
	@mkdir -p $(BIN)
	$(CC) $(CFLAGS) -o $@ $< $(LDLIBS)
