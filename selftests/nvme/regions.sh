#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Controllers on a device of few regions: rivet_few_regions.ko (selftests/regions)
# has it say that there are 128, of which half are for caches. Each of these takes
# all that are left.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"
need_tools fio

cached() { by_policy memory=cached copy_threshold=0 mr_cache_entries=64; }

second_target() { disk disk1 32 && subsystem "$NQN:2" && namespace "$NQN:2" 1 /dev/disk1 && offer 1 "$NQN:2"; }

# hits CTRL: HITS is how often its queues found a registration, in what they do now: the
# same buffers, again and again.
hits() {
	counted "$1"
	local before=${COUNT[mr_hits]-0}
	fio_run hits --rw=randrw --bs=64k --iodepth=2 --size=8M --ioengine=libaio --direct=1
	counted "$1"
	HITS=$((COUNT[mr_hits] - before))
}

# refused: none is left for one that is new.
refused() {
	cached && a_target 32 && connects && second_target || return
	hits "$CTRL"
	[ "$HITS" -gt 0 ] || fail "no hits"
	# shellcheck disable=SC2086 # words
	! connect_to $NQN:2 $AT_FIRST || fail "it connects"
	dmesg | grep -q "rivet: nvme.*the 0 regions that the device has left for caches, are too few for" || fail "it does not say why"
	flows_once
	disconnects
}
flows_once() { fio_run once --rw=randrw --bs=64k --iodepth=4 --size=4M --ioengine=libaio --direct=1; }

# without: a controller that is connected again, and whose regions others have taken meanwhile,
# goes on without, and says so once; with the next reset it has some again.
without() {
	local first disk
	# shellcheck disable=SC2086 # words
	cached && a_target 32 && connects $SHORT && second_target || return
	first=$CTRL disk=$DISK
	withdraw 1 "$NQN"
	wait_for 30 ctrl_is "$first" connecting || fail "it is $(cat "/sys/class/nvme/$first/state")"
	# shellcheck disable=SC2086 # words
	connect_to $NQN:2 $AT_FIRST || { fail "connect: $SAID" && return; }
	offer 1 "$NQN"
	wait_for 60 ctrl_is "$first" live || { fail "it is $(cat "/sys/class/nvme/$first/state")" && return; }
	DISK=$disk
	hits "$first"
	[ "$HITS" = 0 ] || fail "$HITS hits without a cache"
	nvme reset "/dev/$first" >/dev/null && wait_for 20 ctrl_is "$first" live || fail "reset"
	flows_once
	[ "$(dmesg | grep -c "rivet: $first: other caches have the device's regions")" = 1 ] || fail "it does not say so once"
	disconnects "$NQN:2"
	nvme reset "/dev/$first" >/dev/null && wait_for 20 ctrl_is "$first" live || fail "reset"
	hits "$first"
	[ "$HITS" -gt 0 ] || fail "no hits after the other has gone"
	disconnects
}

# shellcheck disable=SC2034 # of lib.sh
BELOW=rivet_few_regions
nvme_tests refused without
