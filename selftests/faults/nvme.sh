#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Allocations that fail while a controller of the NVMe host is connected, each one in
# its turn, regions and queues among them; and some, by chance, while it is connected
# anew. Target and host are on one device, in the first network namespace.

# shellcheck source=selftests/inject.sh
. "${0%/*}/../inject.sh"

N=/sys/kernel/config/nvmet
NQN=rivet-faults
AT=10.77.3.1
CTRL=/sys/class/nvme/nvme0
OPTIONS="transport=rivet,traddr=$AT,trsvcid=4420,nqn=$NQN,nr_io_queues=2,nr_poll_queues=1,queue_size=16"

# target: one that answers at $AT.
target() {
	modprobe_all nvme_fabrics nvmet nvmet_rdma veth rdma_rxe && modprobe null_blk nr_devices=0 || return
	ip link add vx mtu 9000 type veth peer name vy mtu 9000 && ip addr add "$AT/24" dev vx && ip link set vx up &&
		ip link set vy up && rdma link add rxex type rxe netdev vx && wait_for 10 gid_ready rxex ffff:0a4d:0301 || return
	mkdir /sys/kernel/config/nullb/x && echo 1 >/sys/kernel/config/nullb/x/power && wait_for 5 [ -b /dev/x ] || return
	mkdir "$N/subsystems/$NQN" "$N/subsystems/$NQN/namespaces/1" "$N/ports/1" && echo 1 >"$N/subsystems/$NQN/attr_allow_any_host" &&
		echo -n /dev/x >"$N/subsystems/$NQN/namespaces/1/device_path" && echo 1 >"$N/subsystems/$NQN/namespaces/1/enable" &&
		echo rdma >"$N/ports/1/addr_trtype" && echo ipv4 >"$N/ports/1/addr_adrfam" && echo "$AT" >"$N/ports/1/addr_traddr" &&
		echo 4420 >"$N/ports/1/addr_trsvcid" && ln -s "$N/subsystems/$NQN" "$N/ports/1/subsystems/$NQN"
}

needs_host() {
	can_inject
	[ -d "$RIVET/nvme" ] || skip "this module has no NVMe host"
	target || { fail "no target" && return 1; }
	filter
}

is_live() { [ "$(cat "$CTRL/state" 2>/dev/null)" = live ]; }
is_gone() { [ ! -e $CTRL ]; }
moved() { dd if=/dev/nvme0n1 of=/dev/null bs=64k count=4 iflag=direct status=none; }

# connects: with each fault it ends in an error or in success. What the core makes of
# a command that could not be sent is not always ENOMEM.
connects() {
	local said rc=0
	needs_host || return
	said=$(fail_nth -u "$CTRL/delete_controller=1" write /dev/nvme-fabrics "$OPTIONS" 2>&1) || rc=$?
	progress "$said"
	[ "$rc" -eq 0 ] || fail "$said"
	[[ $said =~ ^[1-9][0-9]+\ sites:.*\ ENOMEM ]] || fail "no allocation of rivet's has failed"
	wait_for 10 is_live && wait_for 10 [ -b /dev/nvme0n1 ] && moved || fail "it does not work without faults"
}

# reconnects: it is connected anew, by the core's work, until all that it needs is there.
reconnects() {
	local round
	needs_host || return
	echo "$OPTIONS,reconnect_delay=1,ctrl_loss_tmo=600" >/dev/nvme-fabrics && wait_for 10 is_live || { fail "it is not connected" && return; }
	for round in 1 2 3 4 5 6; do
		set_faults times $((round * 3))
		set_faults probability $((round * 5))
		echo 1 >"$CTRL/reset_controller" 2>/dev/null
		nap 4
		set_faults probability 0
		set_faults times -1
		wait_for 90 is_live || { fail "round $round: it is $(cat "$CTRL/state")" && return; }
		moved || fail "round $round: it does not work"
	done
}

restore() {
	no_faults
	is_gone || echo 1 >"$CTRL/delete_controller"
	wait_for 20 is_gone || fail "the controller stays"
	{
		rm "$N/ports/1/subsystems/$NQN"
		rmdir "$N/subsystems/$NQN/namespaces/1" "$N/ports/1" "$N/subsystems/$NQN" /sys/kernel/config/nullb/x
		rdma link delete rxex
		ip link delete vx
	} 2>/dev/null
	rmmod nvmet_rdma nvmet null_blk 2>/dev/null
}

tests connects reconnects
