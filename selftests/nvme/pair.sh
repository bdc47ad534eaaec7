#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# A target on another machine, which dies, stands still and comes back:
#
#   qemu/vm pair --root --name NAME --other /rivet/selftests/nvme/pair-target -- /rivet/selftests/run nvme/pair

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"

# there [OPTION...]: connected to the target there.
there() {
	[ "$RIVET_PAIR" = a ] || skip "it needs two machines: qemu/vm pair"
	need_tools fio
	other start || { fail "no target" && exit 1; }
	connects "$@"
}

# writes NAME LOOPS SIZE
writes() {
	fio_start "$1" --rw=randwrite --bsrange=512-128k --size="$3" --iodepth=16 --ioengine=libaio --direct=1 --loops="$2"
	flows "$DISK" 60 || fail "no I/O"
}

works() {
	there || return
	fio_run works --rw=randrw --bsrange=512-1M --size=16M --iodepth=16 --ioengine=libaio --direct=1
	disconnects
}

# killed: during writes, and started again: all goes on, and nothing is lost.
killed() {
	# shellcheck disable=SC2086 # words
	there $SHORT || return
	writes killed 3 24M
	other kill
	nap 2
	other start || { fail "it does not start again" && return; }
	flows "$DISK" 120 || fail "no I/O after it"
	fio_wait killed 240
	wait_for 60 ctrl_is "$CTRL" live || fail "it is $(cat "/sys/class/nvme/$CTRL/state")"
	disconnects
}

# for_good: it never comes back: errors after ctrl_loss_tmo, and all is gone.
for_good() {
	local begin
	# shellcheck disable=SC2086 # words
	there $SHORT --ctrl-loss-tmo=1 || return
	fio_to_error
	begin=$SECONDS
	other kill
	wait_for 180 fails_over || fail "the load hangs"
	progress "errors after $((SECONDS - begin)) s"
	wait_for 120 no_ctrls || fail "the controller stays"
	wait_for 60 no_disks || fail "the disk stays"
}

# frozen: it stands still for longer than anybody waits, and goes on.
frozen() {
	# shellcheck disable=SC2086 # words
	there $SHORT || return
	writes frozen 2 16M
	other stop
	nap 15
	other cont
	flows "$DISK" 120 || fail "no I/O after it"
	fio_wait frozen 240
	disconnects
}

# killed_connecting: in the middle of connect.
killed_connecting() {
	local ms begin
	for ms in 100 400; do
		there && disconnects || return
		limits admin_timeout=4
		# shellcheck disable=SC2086 # words
		nvme connect -t "$NVME_TRANSPORT" -n $NQN -q $HOSTNQN -I $HOSTID $AT_FIRST --ctrl-loss-tmo=0 >/tmp/connect 2>&1 &
		nap "0.$ms"
		begin=$SECONDS
		other kill
		wait_for 120 no_jobs || fail "after $ms ms: the connect hangs"
		progress "killed after $ms ms: $((SECONDS - begin)) s: $(</tmp/connect)"
		all_gone
	done
}

# filesystem: its machine dies under a file system, which is whole after it.
filesystem() {
	local out at=/tmp/mounted
	# shellcheck disable=SC2086 # words
	there $SHORT || return
	need_tools mkfs.ext4 e2fsck
	modprobe ext4 && mkdir -p "$at" && mkfs.ext4 -q -F "$DISK" && mount "$DISK" "$at" || { fail "no file system" && return; }
	fio --name=files --directory="$at" --rw=randwrite --bsrange=1k-64k --size=8M --numjobs=2 --ioengine=libaio --iodepth=8 \
		--fsync=32 --verify=crc32c --loops=2 --output=/tmp/fio.files >/tmp/fio.files.said 2>&1 &
	flows "$DISK" 60 || fail "no I/O"
	other kill
	other start || { fail "it does not start again" && return; }
	wait_for 300 no_jobs || fail "the load hangs"
	wait %% 2>/dev/null || fail "fio: $(tail -n 5 /tmp/fio.files.said)"
	umount "$at" || fail "umount"
	out=$(e2fsck -f -n "$DISK" 2>&1) || fail "it is not whole: $out"
	disconnects
}

after() {
	! mountpoint -q /tmp/mounted || umount -l /tmp/mounted
	[ "$RIVET_PAIR" != a ] || other kill
}

nvme_tests works killed for_good frozen killed_connecting filesystem
