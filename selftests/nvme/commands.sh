#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Commands without data, or whose data is not the caller's: discard, write zeroes,
# flush.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"

# is_zero OFFSET LENGTH, is_not_zero OFFSET LENGTH: in KiB.
is_zero() { dd if="$DISK" bs=1k skip="$1" count="$2" iflag=direct status=none | cmp -s -n $(($2 * 1024)) - /dev/zero; }
is_not_zero() { ! dd if="$DISK" bs=1k skip="$1" count="$2" iflag=direct status=none | tr -d '\0' | cmp -s - /dev/null; }

filled_target() {
	a_target 32 && connects || return
	tr '\0' x </dev/zero | dd of="$DISK" bs=1M count=32 oflag=direct iflag=fullblock status=none || fail "dd"
}

discards() {
	filled_target || return
	blkdiscard -o $((4 << 20)) -l $((8 << 20)) "$DISK" || fail "blkdiscard"
	is_zero 4096 8192 || fail "what was discarded is there"
	is_not_zero 4095 1 && is_not_zero 12288 1 || fail "it has discarded too much"
	# Many ranges in one command.
	fio --name=trims --filename="$DISK" --rw=randtrim --bs=4k --size=2M --offset=16M --iodepth=32 --ioengine=libaio \
		--direct=1 --output=/tmp/fio.trims 2>&1 || fail "fio: $(cat /tmp/fio.trims)"
	is_zero 16384 2048 || fail "fio's trims have left something"
	is_not_zero 16383 1 && is_not_zero 18432 1 || fail "fio's trims were too long"
	# Together with writes.
	fio --name=both --filename="$DISK" --rw=randtrimwrite --bs=4k --size=2M --iodepth=16 --ioengine=libaio --direct=1 \
		--output=/tmp/fio.both 2>&1 || fail "fio: $(cat /tmp/fio.both)"
	fio_run after --rw=randrw --bs=4k --size=2M --iodepth=16 --ioengine=libaio --direct=1
	disconnects
}

zeroes() {
	filled_target || return
	blkdiscard -z -o $((1 << 20)) -l $((8 << 20)) "$DISK" || fail "blkdiscard -z"
	is_zero 1024 8192 || fail "there is more than zeroes"
	is_not_zero 1023 1 && is_not_zero 9216 1 || fail "too many zeroes"
	nvme write-zeroes "$DISK" --start-block=0 --block-count=7 >/dev/null || fail "nvme write-zeroes"
	is_zero 0 4 && is_not_zero 4 1 || fail "nvme write-zeroes: not 8 blocks"
	disconnects
}

# flushes: they come to the target, in between and under load.
flushes() {
	disk disk0 64 cache_size=8 && subsystem "$NQN" && namespace "$NQN" 1 /dev/disk0 && port 1 "$SERVER" && offer 1 "$NQN" ||
		{ fail "there is no target" && return; }
	connects
	[ "$(cat "/sys/block/${DISK#/dev/}/queue/write_cache")" = "write back" ] || fail "the target has no cache"
	nvme flush "$DISK" -n 1 >/dev/null || fail "nvme flush"
	fio_run flushes --rw=randwrite --bs=4k --size=2M --iodepth=8 --ioengine=io_uring --direct=1 --fsync=4
	fio_run fdatasync --rw=write --bs=512 --size=256k --ioengine=psync --direct=0 --fdatasync=1
	disconnects
}

# compares: a command that fails for what its data is.
compares() {
	a_target && connects || return
	head -c 4096 /dev/urandom >/tmp/block
	dd if=/tmp/block of="$DISK" bs=4096 count=1 oflag=direct status=none || fail "dd"
	if nvme id-ctrl "/dev/$CTRL" | grep -qE '^oncs *: 0x[0-9a-f]*[13579bdf]$'; then
		nvme compare "$DISK" -s 0 -c 7 -z 4096 -d /tmp/block >/dev/null || fail "what is the same is another"
	else
		! nvme compare "$DISK" -s 0 -c 7 -z 4096 -d /tmp/block >/dev/null 2>&1 || fail "the target compares, and says that it cannot"
	fi
	fio_run after --rw=randrw --bs=4k --size=1M --iodepth=4 --ioengine=libaio --direct=1
	disconnects
}

nvme_tests discards zeroes flushes compares
