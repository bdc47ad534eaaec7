#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The commands of nvme-cli, as they are, with a controller of the host.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"

# wants TEXT COMMAND...: it succeeds, and says TEXT.
wants() {
	local text=$1 out
	shift
	out=$("$@" 2>&1) || { fail "$*: status $?: $out" && return; }
	[[ $out == *"$text"* ]] || fail "$*: no '$text' in: $out"
}

# packets INTERFACE: that it has sent.
packets() { cat "/sys/class/net/$1/statistics/tx_packets"; }

# What the other tests build on: both directions pass the network.
crosses() {
	local a b
	[ -z "$ALONE" ] || skip "both ends are one device"
	a_target && connects || return
	a=$(packets va) b=$(packets vb)
	dd if="$DISK" of=/dev/null bs=64k count=64 iflag=direct status=none || fail "dd"
	[ $(($(packets va) - a)) -ge 64 ] || fail "the host sent $(($(packets va) - a)) packets"
	[ $(($(packets vb) - b)) -ge 448 ] || fail "the target sent $(($(packets vb) - b)) packets"
	disconnects
}

discover() {
	a_target || return
	# shellcheck disable=SC2086 # words
	wants "subnqn:  $NQN" nvme discover -t "$NVME_TRANSPORT" $AT_FIRST -q $HOSTNQN -I $HOSTID
	wait_for 10 no_ctrls || fail "the discovery controller stays"
}

# A discovery controller that stays is told of changes.
discover_stays() {
	a_target || return
	# shellcheck disable=SC2086 # words
	wants "subnqn:  $NQN" nvme discover -p -t "$NVME_TRANSPORT" $AT_FIRST -q $HOSTNQN -I $HOSTID
	compgen -G "/sys/class/nvme/nvme*" >/dev/null || fail "no discovery controller stays"
	withdraw 1 "$NQN" && offer 1 "$NQN"
	disconnects nqn.2014-08.org.nvmexpress.discovery
	wait_for 10 no_ctrls || fail "the discovery controller is left"
}

# connect_all: takes the transport's name from what the target says, which is rdma.
connect_all() {
	[ "$NVME_TRANSPORT" = rdma ] || skip "connect-all asks for the transport that the target names, rdma"
	a_target && subsystem "$NQN:2" && offer 1 "$NQN:2" || return
	# shellcheck disable=SC2086 # words
	wants "" nvme connect-all -t rdma $AT_FIRST -q $HOSTNQN -I $HOSTID
	[ "$(cat /sys/class/nvme/nvme*/subsysnqn | sort | tr '\n' ' ')" = "$NQN $NQN:2 " ] ||
		fail "connected: $(cat /sys/class/nvme/nvme*/subsysnqn)"
	wait_for 20 find_disk "$NQN" || fail "no disk"
	wants "" nvme disconnect-all
	wait_for 20 no_ctrls || fail "controllers are left"
}

lists() {
	a_target && connects || return
	wants "$DISK" nvme list
	wants "$CTRL $NVME_TRANSPORT traddr=10.77.0.2,trsvcid=4420,host_traddr=10.77.0.1" nvme list-subsys
	wants "live" nvme list-subsys
	wants "$NQN" nvme list-subsys -o json
	wants "$NQN" nvme id-ctrl "/dev/$CTRL"
	wants "nsze    : 0x20000" nvme id-ns "$DISK"
	wants "[   0]:0x1" nvme list-ns "/dev/$CTRL"
	wants "critical_warning" nvme smart-log "/dev/$CTRL"
	wants "Error Log" nvme error-log "/dev/$CTRL"
	wants "Admin" nvme effects-log "/dev/$CTRL"
	wants "cap " nvme show-regs "/dev/$CTRL"
	[ "$(cat "/sys/class/nvme/$CTRL/transport")" = "$NVME_TRANSPORT" ] || fail "transport is $(cat "/sys/class/nvme/$CTRL/transport")"
	disconnects
	wait_for 20 no_disks || fail "the disk stays"
}

features() {
	a_target && connects || return
	wants "value:0x00001388" nvme get-feature "/dev/$CTRL" -f 0x0f -s 0
	# Asynchronous events.
	wants "" nvme set-feature "/dev/$CTRL" -f 0x0b -V 0x900
	wants "value:0x00000900" nvme get-feature "/dev/$CTRL" -f 0x0b
	# Write protection of the namespace.
	wants "" nvme set-feature "/dev/$CTRL" -f 0x84 -n 1 -V 1
	wants "value:0x00000001" nvme get-feature "/dev/$CTRL" -f 0x84 -n 1
	! dd if=/dev/zero of="$DISK" bs=4k count=1 oflag=direct status=none 2>/dev/null || fail "what is protected was written"
	wants "" nvme set-feature "/dev/$CTRL" -f 0x84 -n 1 -V 0
	# The target says that it changed, and the core asks what it is now; until then its
	# disk may be read-only.
	wait_for 10 is_written || fail "it cannot be written any more"
	disconnects
}
is_written() { dd if=/dev/zero of="$DISK" bs=4k count=1 oflag=direct status=none 2>/dev/null; }

# Data in both directions, and errors of the target that come back as they are.
passthru() {
	local out
	a_target && connects || return
	# Identify, CNS 1: the model.
	out=$(nvme admin-passthru "/dev/$CTRL" --opcode=6 --cdw10=1 --data-len=4096 --read --raw-binary 2>/dev/null | tr -d '\0')
	[[ $out == *Linux* ]] || fail "identify: no model in it"
	head -c 4096 /dev/urandom >/tmp/block
	# 8 blocks from 16 on.
	wants "" nvme io-passthru "$DISK" --opcode=1 --namespace-id=1 --cdw10=16 --cdw12=7 --data-len=4096 --write --input-file=/tmp/block
	nvme io-passthru "$DISK" --opcode=2 --namespace-id=1 --cdw10=16 --cdw12=7 --data-len=4096 --read --raw-binary >/tmp/block.read 2>/dev/null ||
		fail "the read"
	cmp /tmp/block /tmp/block.read || fail "what was written is not what is read"
	dd if="$DISK" bs=512 skip=16 count=8 iflag=direct status=none | cmp - /tmp/block || fail "dd reads something else"
	out=$(nvme io-passthru "$DISK" --opcode=2 --namespace-id=1 --cdw10=0xffffffff --cdw12=7 --data-len=4096 --read 2>&1) &&
		fail "a read beyond the end succeeds"
	[[ $out == *"NVMe status"* ]] || fail "a read beyond the end: $out"
	out=$(nvme admin-passthru "/dev/$CTRL" --opcode=0xc0 2>&1) && fail "an opcode that is none succeeds"
	[[ $out == *"Invalid Command Opcode"* || $out == *INVALID_OPCODE* ]] || fail "an opcode that is none: $out"
	# It is none the worse.
	fio_run passthru --rw=randrw --bs=4k --size=1M --iodepth=4 --ioengine=libaio --direct=1
	disconnects
}

size_is() { [ "$(blockdev --getsize64 "$1" 2>/dev/null)" = "$2" ]; }
no_disk_of() { ! find_disk "$1" "$2"; }

# Namespaces come, change and go while it is connected.
namespaces() {
	local first
	a_target && disk disk1 32 && connects || return
	first=$DISK
	namespace "$NQN" 2 /dev/disk1 || fail "namespace 2"
	wait_for 20 find_disk "$NQN" 2 || fail "namespace 2 does not come"
	size_is "$DISK" $((32 << 20)) || fail "its size is $(blockdev --getsize64 "$DISK")"
	fio_run second --rw=randrw --bs=4k --size=1M --iodepth=4 --ioengine=libaio --direct=1
	rmdir "$N/subsystems/$NQN/namespaces/2" || fail "it cannot be removed"
	wait_for 20 no_disk_of "$NQN" 2 || fail "namespace 2 stays"
	# A file grows (of a file system that has a size of blocks, as overlayfs has not);
	# nvmet looks at its size again.
	truncate -s 8M /dev/shm/grows && namespace "$NQN" 3 /dev/shm/grows buffered_io=1 && wait_for 20 find_disk "$NQN" 3 || fail "namespace 3"
	truncate -s 16M /dev/shm/grows && echo 1 >"$N/subsystems/$NQN/namespaces/3/revalidate_size"
	wait_for 20 size_is "$DISK" $((16 << 20)) || fail "the size stays at $(blockdev --getsize64 "$DISK")"
	wants "" nvme ns-rescan "/dev/$CTRL"
	DISK=$first fio_run first --rw=randrw --bs=4k --size=1M --iodepth=4 --ioengine=libaio --direct=1
	disconnects
	rmdir "$N/subsystems/$NQN/namespaces/3" && rm -f /dev/shm/grows
}

# Reset under load: what is under way is done after it.
resets() {
	a_target && connects || return
	fio_start load --rw=randrw --bsrange=512-128k --size=32M --iodepth=16 --ioengine=libaio --direct=1 --loops=2
	for _ in 1 2 3; do
		flows "$DISK" || fail "no I/O"
		wants "" nvme reset "/dev/$CTRL"
		wait_for 30 ctrl_is "$CTRL" live || fail "after reset it is $(cat "/sys/class/nvme/$CTRL/state")"
	done
	flows "$DISK" || fail "no I/O after it"
	fio_wait load 120
	disconnects
}

# It goes under load: errors for what is under way, nothing that hangs.
disconnects_loaded() {
	a_target && connects || return
	fio --name=load --filename="$DISK" --rw=randrw --bsrange=4k-128k --size=64M --iodepth=32 --ioengine=libaio --direct=1 \
		--time_based --runtime=600 --output=/dev/null 2>/dev/null &
	flows "$DISK" || fail "no I/O"
	disconnects
	wait_for 30 no_ctrls || fail "the controller stays"
	wait_for 30 no_jobs || fail "the load hangs"
	wait_for 30 no_disks || fail "the disk stays"
}

nvme_tests crosses discover discover_stays connect_all lists features passthru namespaces resets disconnects_loaded
