#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What is written is what is read, by all kinds of queues and capsules.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"
need_tools fio

# capsule BYTES: in-capsule data of another size, none too.
capsule() {
	a_target 16 "param_inline_data_size=$1" && connects || return
	fio_run capsule --rw=randrw --bsrange=512-20k --blockalign=512 --iodepth=32 --size=8M --ioengine=libaio --direct=1
	disconnects
}

# polled DEPTH JOBS
polled() {
	a_target $((16 * $2)) && connects --nr-poll-queues=2 || return
	fio_run polled --rw=randrw --bsrange=512-1M --blockalign=512 --iodepth="$1" --numjobs="$2" --size=16M \
		--offset_increment=16M --ioengine=io_uring --hipri --direct=1
	disconnects
}

# fixed: buffers and files that io_uring knows before.
fixed() {
	a_target 32 && connects || return
	fio_run fixed --rw=randrw --bsrange=512-256k --blockalign=512 --iodepth=32 --size=32M --ioengine=io_uring \
		--fixedbufs --registerfiles --sqthread_poll --direct=1
	disconnects
}

# queues OPTION...: with other queues than one for each CPU.
queues() {
	a_target 32 && connects "$@" || return
	fio_run queues --rw=randrw --bsrange=512-128k --blockalign=512 --iodepth=128 --numjobs=2 --size=8M \
		--offset_increment=16M --ioengine=libaio --direct=1
	disconnects
}

# Two hosts' worth of controllers on two disks at a time.
two_disks() {
	local first
	a_target 32 && connects && first=$DISK || return
	disk disk1 32 && subsystem "$NQN:2" && namespace "$NQN:2" 1 /dev/disk1 && offer 1 "$NQN:2" || { fail "the second target" && return; }
	# shellcheck disable=SC2086 # words
	connect_to $NQN:2 $AT_FIRST || { fail "connect: $SAID" && return; }
	wait_for 20 find_disk "$NQN:2" || { fail "no second disk" && return; }
	fio_start second --rw=randrw --bsrange=512-256k --blockalign=512 --iodepth=16 --size=16M --ioengine=libaio --direct=1
	DISK=$first fio_run first --rw=randrw --bsrange=512-256k --blockalign=512 --iodepth=16 --size=16M --ioengine=libaio --direct=1
	fio_wait second 120
	disconnects
	disconnects "$NQN:2"
}

# shared: the target's queues share their receives, of which there are too few.
shared() {
	modprobe -r nvmet_rdma && modprobe nvmet_rdma use_srq=1 srq_size=256 || { fail "nvmet_rdma" && return; }
	a_target 32 && connects || return
	fio_run shared --rw=randrw --bsrange=512-32k --blockalign=512 --iodepth=128 --numjobs=4 --size=4M \
		--offset_increment=8M --ioengine=io_uring --direct=1
	disconnects
}

# administered: the admin queue has its turn beside full I/O queues, and nobody takes
# the connection for dead.
administered() {
	local n
	a_target 64 && connects --keep-alive-tmo=5 || return
	fio_start busy --rw=randrw --bsrange=4k-64k --size=16M --iodepth=128 --numjobs=2 --offset_increment=32M \
		--ioengine=io_uring --direct=1 --loops=3
	flows "$DISK" || fail "no I/O"
	for n in {1..10}; do
		timeout $((20 * SLOWER)) nvme id-ctrl "/dev/$CTRL" >/dev/null || fail "id-ctrl $n"
		timeout $((20 * SLOWER)) nvme smart-log "/dev/$CTRL" >/dev/null || fail "smart-log $n"
	done
	fio_wait busy 240
	! dmesg | grep -E "nvme.*(recover|reconnect|timeout)" || fail "the connection was lost"
	disconnects
}

after() {
	if [ "$(cat /sys/module/nvmet_rdma/parameters/use_srq 2>/dev/null)" = Y ]; then
		no_targets
		modprobe -r nvmet_rdma && modprobe nvmet
	fi
}

nvme_tests "polled 1 1" "polled 32 2" fixed "capsule 0" "capsule 4096" "capsule 16384" \
	"queues --nr-io-queues=1" "queues --nr-io-queues=4" "queues --queue-size=16" \
	"queues --nr-write-queues=1" two_disks shared administered
