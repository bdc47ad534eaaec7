#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Two paths to one disk: whatever happens to one, who uses the disk sees no error.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"
need_tools fio

# two_paths: FIRST and SECOND are their controllers.
two_paths() {
	a_target 64 && port 2 10.78.0.2 && offer 2 "$NQN" || { fail "no target" && return 1; }
	connects --reconnect-delay=1 --keep-alive-tmo=2
	FIRST=$CTRL
	# shellcheck disable=SC2086 # words
	connect_to $NQN $AT_SECOND --reconnect-delay=1 --keep-alive-tmo=2 || { fail "the second path: $SAID" && return 1; }
	SECOND=$CTRL
	wait_for 20 two_there || { fail "the disk has not two paths" && return 1; }
}
two_there() { [ "$(find /sys/block/"${DISK#/dev/}"/multipath -type l 2>/dev/null | wc -l)" = 2 ]; }

# port_away: a port is taken away and given back, then the other one.
port_away() {
	local n
	two_paths || return
	load 3
	for n in 1 2; do
		withdraw "$n" "$NQN"
		flows "$DISK" 60 || fail "no I/O without port $n"
		offer "$n" "$NQN"
		nap 2
		flows "$DISK" 60 || fail "no I/O with port $n again"
	done
	fio_wait load 240
	wait_for 60 ctrl_is "$FIRST" live || fail "the first path is $(cat "/sys/class/nvme/$FIRST/state")"
	wait_for 60 ctrl_is "$SECOND" live || fail "the second path is $(cat "/sys/class/nvme/$SECOND/state")"
	disconnects
}

# link_away: the network of one path is cut, without a word to anybody.
link_away() {
	two_paths || return
	load 2
	tc qdisc add dev va root netem loss 100% && tc qdisc add dev vb root netem loss 100%
	flows "$DISK" 90 || fail "no I/O by the other path"
	tc qdisc del dev va root && tc qdisc del dev vb root
	fio_wait load 240
	wait_for 90 ctrl_is "$FIRST" live || fail "the first path is $(cat "/sys/class/nvme/$FIRST/state")"
	disconnects
}

# one_disconnected: a path is taken away for good.
one_disconnected() {
	two_paths || return
	load 2
	nvme disconnect -d "$FIRST" >/dev/null || fail "disconnect"
	flows "$DISK" 60 || fail "no I/O by the other path"
	fio_wait load 240
	ctrl_gone "$FIRST" || fail "the first path is there"
	disconnects
}

# ana: the target says by which path to go.
ana() {
	local state a b
	two_paths || return
	for state in non-optimized inaccessible optimized; do
		echo "$state" >"$N/ports/1/ana_groups/1/ana_state" || fail "ana_state $state"
		wait_for 20 ana_is 1 "$state" || fail "the host does not hear of $state"
		fio_run "$state" --rw=randrw --bs=4k --size=2M --iodepth=8 --ioengine=libaio --direct=1
	done
	# Inaccessible under load.
	load 2
	for state in inaccessible optimized; do
		echo "$state" >"$N/ports/2/ana_groups/1/ana_state"
		flows "$DISK" 60 || fail "no I/O while the second path is $state"
	done
	fio_wait load 240
	disconnects
}
# ana_is PATH STATE: of the first or the second controller.
ana_is() {
	local ctrl=$FIRST
	[ "$1" = 1 ] || ctrl=$SECOND
	[ "$(cat /sys/class/nvme/"$ctrl"/nvme*c*n*/ana_state 2>/dev/null)" = "$2" ]
}

# round_robin: both paths are used.
round_robin() {
	local subsystem a b
	two_paths || return
	for subsystem in /sys/class/nvme-subsystem/nvme-subsys*; do echo round-robin >"$subsystem/iopolicy"; done
	a=$(cat /sys/class/net/va/statistics/tx_packets) b=$(cat /sys/class/net/vc/statistics/tx_packets)
	fio_run both --rw=randrw --bs=4k --size=4M --iodepth=16 --ioengine=libaio --direct=1
	a=$(($(cat /sys/class/net/va/statistics/tx_packets) - a)) b=$(($(cat /sys/class/net/vc/statistics/tx_packets) - b))
	[ "$a" -gt 500 ] && [ "$b" -gt 500 ] || fail "packets by the first path: $a, by the second: $b"
	disconnects
}

renetwork() {
	for v in va vb vc vd; do tc qdisc del dev $v root; done 2>/dev/null
}

nvme_tests 2 port_away link_away one_disconnected ana round_robin
