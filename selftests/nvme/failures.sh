#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Networks that fail.

WIRE=1
# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"
need_tools fio

# loses PERCENT LENGTH SIZE: packets, both ways, with requests of up to LENGTH. Each of
# them that rxe has to miss by its timer costs half a second.
loses() {
	a_target && limits io_timeout=20 && connects || return
	for v in va vb; do tc qdisc add dev "$v" root netem loss "$1%" || fail "tc"; done
	fio_run lossy --rw=randrw --bsrange="512-$2" --size="$3" --iodepth=8 --ioengine=libaio --direct=1
	for v in va vb; do tc qdisc del dev "$v" root; done
	fio_run after --rw=randrw --bs=4k --size=1M --iodepth=4 --ioengine=libaio --direct=1
	wait_for 60 ctrl_is "$CTRL" live || fail "it is $(cat "/sys/class/nvme/$CTRL/state")"
	disconnects
}

# late KNOB=VALUE...: acknowledgements come later than they are waited for, so that all is sent
# again and again, with registrations between what is: nothing breaks by that. Only what
# is read, as the target's own READs of data do not survive it on soft-RoCE.
late() {
	local v
	by_policy "$@" || return
	# A qdisc that comes under traffic takes packets with it.
	for v in va vb; do tc qdisc add dev "$v" root netem limit 10000 || fail "tc"; done
	a_target && connects || return
	fio_run before --rw=write --bs=64k --size=8M --iodepth=8 --ioengine=libaio --direct=1
	dmesg -C
	for v in va vb; do tc qdisc change dev "$v" root netem delay 100ms limit 10000 || fail "tc"; done
	fio_run late --rw=randread --bs=64k --size=8M --iodepth=8 --ioengine=libaio --direct=1
	for v in va vb; do tc qdisc change dev "$v" root netem limit 10000 || fail "tc"; done
	wait_for 60 ctrl_is "$CTRL" live || fail "it is $(cat "/sys/class/nvme/$CTRL/state")"
	! dmesg | grep 'rivet:.*connected anew' || fail "it broke"
	disconnects
	for v in va vb; do tc qdisc del dev "$v" root; done
}

# pulled SECONDS [INTERFACE]: the cable is out for so long: I/O waits and goes on.
pulled() {
	# shellcheck disable=SC2086 # words
	a_target && connects $SHORT || return
	load 3
	pull "$2"
	nap "$1"
	plug "$2" && path_gids 1
	flows "$DISK" 120 || fail "no I/O after it"
	fio_wait load 240
	wait_for 60 ctrl_is "$CTRL" live || fail "it is $(cat "/sys/class/nvme/$CTRL/state")"
	disconnects
}

# silenced SECONDS: nobody is told, all packets are lost.
silenced() {
	# shellcheck disable=SC2086 # words
	a_target && connects $SHORT || return
	load 2
	cut_net
	nap "$1"
	mend_net
	flows "$DISK" 90 || fail "no I/O after it"
	fio_wait load 240
	disconnects
}
cut_net() { for v in va vb; do tc qdisc replace dev "$v" root netem loss 100% limit 1000; done; }
mend_net() { for v in va vb; do tc qdisc del dev $v root 2>/dev/null; done; }

# for_good: the network does not come back: errors after ctrl_loss_tmo, then all is gone.
# nvme-rdma may look at its clock only when the CM gives up, which takes it a minute.
for_good() {
	# shellcheck disable=SC2086 # words
	a_target && limits io_timeout=5 admin_timeout=5 && connects $SHORT --ctrl-loss-tmo=1 || return
	fio_to_error
	cut_net
	wait_for 180 fails_over || fail "the load hangs"
	wait_for 180 no_ctrls || fail "the controller stays"
	wait_for 60 no_disks || fail "the disk stays"
	mend_net
	connects && disconnects
}
# fast_fail: with fast_io_fail_tmo errors come while it still tries to connect.
fast_fail() {
	# shellcheck disable=SC2086 # words
	a_target && limits io_timeout=5 admin_timeout=5 && connects $SHORT --ctrl-loss-tmo=600 --fast_io_fail_tmo=3 || return
	fio_to_error
	cut_net
	wait_for 120 fails_over || fail "no error after fast_io_fail_tmo"
	ctrl_is "$CTRL" connecting || fail "it is $(cat "/sys/class/nvme/$CTRL/state")"
	mend_net
	wait_for 90 ctrl_is "$CTRL" live || fail "it does not come back: $(cat "/sys/class/nvme/$CTRL/state")"
	fio_run after --rw=randrw --bs=4k --size=1M --iodepth=4 --ioengine=libaio --direct=1
	disconnects
}

# cut_connect SECONDS MS...: the network goes so long after the connect began, for so
# many seconds.
cut_connect() {
	local seconds=$1 ms begin
	shift
	a_target && limits admin_timeout=3 || return
	for ms; do
		begin=$SECONDS
		# shellcheck disable=SC2086 # words
		nvme connect -t "$NVME_TRANSPORT" -n $NQN -q $HOSTNQN -I $HOSTID $AT_FIRST $SHORT --ctrl-loss-tmo=0 >/tmp/connect 2>&1 &
		nap "$(printf '0.%03d' "$ms")"
		cut_net
		nap "$seconds"
		mend_net
		wait_for 120 no_jobs || fail "cut after $ms ms: the connect hangs"
		progress "cut after $ms ms for $seconds s: $((SECONDS - begin)) s: $(<"/tmp/connect")"
		all_gone
	done
	connects && disconnects
}
renetwork() {
	mend_net
	plug va && plug vb
}

nvme_tests "loses 1 64k 4M" "loses 10 16k 256k" "late memory=fast" "late memory=cached mr_cache_entries=64" "late memory=fast_waited" "pulled 5 va" "pulled 5 vb" "silenced 1" "silenced 6" fast_fail "cut_connect 2 20 50 100 200 400 800" for_good
