#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# smoke: the NVMe host against the kernel's own target on one machine, in short:
# connect, read and write with verification, polled queues, reset, a target that
# goes and comes back, disconnect, the name rdma, a device that goes. KTAP on
# stdout. Words behind it choose cases.

# shellcheck disable=SC2317 # the cases are called by their names

# shellcheck source=qemu/guest/lib.sh
. "${RIVET_AT:-/rivet}/lib.sh"

ADDRESS=10.77.1.1 PORT=4420 NQN=rivet-smoke
NVMET=/sys/kernel/config/nvmet
HOST=/sys/kernel/config/rivet/nvme
QUEUES=${QUEUES:-2}

device_made() {
	modprobe_all veth rdma_rxe nvme-fabrics nvmet-rdma brd || return 1
	ip link add va mtu 9000 type veth peer name vb mtu 9000
	ip addr add "$ADDRESS/24" dev va
	ip link set va up && ip link set vb up
	rdma link add rxea type rxe netdev va
	wait_for 10 gid_ready rxea ffff:0a4d:0101
}

target_made() {
	local s=$NVMET/subsystems/$NQN p=$NVMET/ports/1
	mkdir "$s" && echo 1 >"$s/attr_allow_any_host" &&
		mkdir "$s/namespaces/1" && echo -n /dev/ram0 >"$s/namespaces/1/device_path" &&
		echo 1 >"$s/namespaces/1/enable" &&
		mkdir "$p" && echo rdma >"$p/addr_trtype" && echo ipv4 >"$p/addr_adrfam" &&
		echo "$ADDRESS" >"$p/addr_traddr" && echo "$PORT" >"$p/addr_trsvcid" && target_comes
}

target_comes() { ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/1/subsystems/$NQN"; }
target_goes() { rm "$NVMET/ports/1/subsystems/$NQN"; }

loads() { rivet_load; }

# ask [KEY=VALUE...]: connects.
ask() {
	local all
	printf -v all ',%s' "transport=${TRANSPORT:-rivet}" "traddr=$ADDRESS" "trsvcid=${AT:-$PORT}" "nqn=$NQN" \
		"nr_io_queues=$QUEUES" reconnect_delay=1 ctrl_loss_tmo=60 "$@"
	echo "${all#,}" 2>/dev/null >/dev/nvme-fabrics
}

connects() { ask "$@" && wait_for 10 found; }

found() {
	DISK=$(echo /dev/nvme*n1)
	[ -b "$DISK" ]
}

state_is() { [ "$(cat /sys/class/nvme/nvme*/state)" = "$1" ]; }

# verified NAME=VALUE...: what is written is read again.
verified() {
	timeout $((60 * SLOWER)) fio --name=smoke --filename="$DISK" --direct=1 --ioengine=libaio \
		--verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0 --size=8M \
		"${@/#/--}" >/tmp/fio.log 2>&1 || { sed 's/^/# /' /tmp/fio.log && return 1; }
}

is_refused() { ! AT=4999 ask && gone; }
writes_small() { verified rw=randwrite bs=4k iodepth=1 size=1M; }
writes_deep() { verified rw=randwrite bs=4k iodepth=32; }
writes_long() { verified rw=write bs=128k iodepth=8; }
writes_mixed() { verified rw=randrw bsrange=512-1M iodepth=16; }
reads_back() { dd if="$DISK" of=/dev/null bs=1M iflag=direct status=none; }
identifies() { nvme id-ctrl /dev/nvme0 | grep -q "^subnqn.*$NQN"; }
resets() { nvme reset /dev/nvme0 && wait_for 10 state_is live && writes_small; }
disconnects() { echo 1 >/sys/class/nvme/nvme0/delete_controller && wait_for 10 gone; }
gone() { ! [ -e /sys/class/nvme/nvme0 ]; }

# Small reads are one work request each, of which most ask for no completion.
is_lean() {
	local before after key value stats=/sys/kernel/debug/rivet/nvme/nvme0/queue1 reads=64
	declare -A before after
	while read -r key value; do before[$key]=$value; done <"$stats"
	dd if="$DISK" of=/dev/null bs=4k count=$reads iflag=direct status=none
	while read -r key value; do after[$key]=$value; done <"$stats"
	echo "# of up to $reads reads on queue 1: $((after[posts] - before[posts])) posts," \
		"$((after[copies] - before[copies])) copies, $((after[doorbells] - before[doorbells])) doorbells"
	[ $((after[posts] - before[posts])) -eq $((after[copies] - before[copies])) ]
}

goes_on() {
	local fio
	verified rw=randwrite bs=4k iodepth=8 runtime=8 time_based=1 verify_backlog=64 &
	fio=$!
	sleep 2
	target_goes && sleep 3 && target_comes || return 1
	wait $fio && wait_for 20 state_is live && writes_small
}

polls() {
	connects nr_poll_queues=1 && verified rw=randrw bs=4k ioengine=io_uring hipri=1 iodepth=4 size=2M && disconnects
}

connects_by_cli() {
	nvme connect -t rivet -a "$ADDRESS" -s "$PORT" -n "$NQN" -i "$QUEUES" && wait_for 10 found &&
		nvme list | sed 's/^/# /' && nvme disconnect -n "$NQN" | sed 's/^/# /' && wait_for 10 gone
}

again() {
	local n
	for ((n = 0; n < 5; n++)); do connects && disconnects || return 1; done
}

claims_rdma() {
	modprobe nvme-rdma && ! echo 1 2>/dev/null >"$HOST/claim_rdma" && rmmod nvme_rdma || return 1
	echo 1 >"$HOST/claim_rdma" && TRANSPORT=rdma connects && writes_small &&
		[ "$(cat /sys/class/nvme/nvme0/transport)" = rdma ] &&
		[ -e /sys/kernel/debug/rivet/nvme/nvme0 ] && disconnects && echo 0 >"$HOST/claim_rdma"
}

policy_counts() {
	echo naive >"$HOST/host_policy" && ! ask && gone && echo latency >"$HOST/host_policy" &&
		connects && writes_small && [ "$(cat /sys/kernel/config/rivet/policies/latency/users)" = 1 ] &&
		disconnects && echo default >"$HOST/host_policy"
}

device_goes() {
	connects && timeout 20 rdma link delete rxea && wait_for 10 gone
}

unloads() { rivet_unload; }
is_silent() {
	! dmesg | grep -E "rivet: .* (left|in use)|WARNING|BUG|Oops|Call Trace" | sed 's/^/# /' | grep .
}

cases=(device_made target_made loads is_refused connects identifies reads_back is_lean writes_small writes_deep
	writes_long writes_mixed resets goes_on disconnects polls again connects_by_cli policy_counts claims_rdma
	device_goes unloads is_silent)
[ $# -eq 0 ] || cases=("$@")
echo "KTAP version 1"
echo "1..${#cases[@]}"
n=0 failed=0
for case in "${cases[@]}"; do
	n=$((n + 1))
	if "$case"; then
		echo "ok $n nvme.smoke.$case"
	else
		echo "not ok $n nvme.smoke.$case"
		failed=1
		dmesg | tail -n 30 | sed 's/^/# /'
	fi
done
exit $failed
