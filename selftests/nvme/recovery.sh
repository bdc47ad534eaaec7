#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Targets that do not answer, devices that go, and what happens while the host is at
# mending it. Targets that die: see pair.sh.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"
need_tools fio dmsetup

# stalls SECONDS: the namespace does not answer; longer than the timeout, the
# controller recovers, and what was asked is done once the namespace goes on.
stalls() {
	modprobe dm_mod && disk disk0 64 && stallable stalling /dev/disk0 && subsystem "$NQN" &&
		namespace "$NQN" 1 /dev/mapper/stalling && port 1 "$SERVER" && offer 1 "$NQN" || { fail "no target" && return; }
	limits io_timeout=4
	# shellcheck disable=SC2086 # words
	connects $SHORT
	load 2
	stall stalling || fail "suspend"
	nap "$1"
	unstall stalling || fail "resume"
	flows "$DISK" 120 || fail "no I/O after it"
	fio_wait load 240
	wait_for 60 ctrl_is "$CTRL" live || fail "it is $(cat "/sys/class/nvme/$CTRL/state")"
	disconnects
}

# stalled_disconnect: it is told to go while the target does not answer.
stalled_disconnect() {
	modprobe dm_mod && disk disk0 64 && stallable stalling /dev/disk0 && subsystem "$NQN" &&
		namespace "$NQN" 1 /dev/mapper/stalling && port 1 "$SERVER" && offer 1 "$NQN" || { fail "no target" && return; }
	limits io_timeout=4 admin_timeout=4
	# shellcheck disable=SC2086 # words
	connects $SHORT
	fio_to_error
	stall stalling || fail "suspend"
	nap 1
	timeout $((120 * SLOWER)) nvme disconnect -n "$NQN" >/dev/null || fail "disconnect: status $?"
	wait_for 60 no_ctrls || fail "the controller stays"
	wait_for 60 fails_over || fail "the load hangs"
	unstall stalling || fail "resume"
	wait_for 60 no_disks || fail "the disk stays"
}

# unlink: the host's device goes under load, and is there again.
unlink() {
	a_target && connects || return
	fio_to_error
	timeout $((120 * SLOWER)) rdma link delete rxea || fail "rdma link delete: status $?"
	wait_for 60 no_ctrls || fail "the controller stays"
	wait_for 60 fails_over || fail "the load hangs"
	wait_for 60 no_disks || fail "the disk stays"
	rdma link add rxea type rxe netdev va && path_gids 1
	connects
	fio_run after --rw=randrw --bs=4k --size=1M --iodepth=4 --ioengine=libaio --direct=1
	disconnects
}

# unlink_target: the target's device goes, and is there again.
unlink_target() {
	[ -z "$ALONE" ] || skip "both ends are one device"
	# shellcheck disable=SC2086 # words
	a_target && connects $SHORT || return
	load 2
	timeout $((120 * SLOWER)) rdma link delete rxeb || fail "rdma link delete: status $?"
	nap 3
	rdma link add rxeb type rxe netdev vb && path_gids 1
	# A listener is bound to its device.
	withdraw 1 "$NQN" && offer 1 "$NQN"
	flows "$DISK" 90 || fail "no I/O after it"
	fio_wait load 240
	disconnects
}

# target_returns: gone in an orderly way, and back: it is found again.
target_returns() {
	# shellcheck disable=SC2086 # words
	a_target && connects $SHORT || return
	load 3
	withdraw 1 "$NQN"
	nap 4
	offer 1 "$NQN"
	flows "$DISK" 90 || fail "no I/O after it"
	fio_wait load 240
	disconnects
}

# races: reset and disconnect, while it tries to connect.
races() {
	local n
	# shellcheck disable=SC2086 # words
	a_target && limits admin_timeout=4 io_timeout=4 && connects $SHORT --ctrl-loss-tmo=30 || return
	for n in 1 2 3 4; do
		withdraw 1 "$NQN"
		nap "0.$n"
		nvme reset "/dev/$CTRL" >/dev/null 2>&1
		offer 1 "$NQN"
		wait_for 60 ctrl_is "$CTRL" live || fail "round $n: it is $(cat "/sys/class/nvme/$CTRL/state")"
	done
	withdraw 1 "$NQN"
	nap 1.5
	# It tries to connect now.
	timeout $((60 * SLOWER)) nvme disconnect -n "$NQN" >/dev/null || fail "disconnect while it connects"
	wait_for 60 no_ctrls || fail "the controller stays"
	offer 1 "$NQN"
}

renetwork() {
	[ -d /sys/class/infiniband/rxea ] || rdma link add rxea type rxe netdev va
	[ -n "$ALONE" ] || [ -d /sys/class/infiniband/rxeb ] || rdma link add rxeb type rxe netdev vb
	path_gids 1
}

nvme_tests "stalls 2" "stalls 10" stalled_disconnect unlink unlink_target target_returns races
