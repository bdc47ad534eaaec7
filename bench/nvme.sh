# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034 # variables for the scripts that source this
#
# For the cases of NVMe, beside perf.sh: a target with a subsystem for each host that
# is measured (with one for both, they would be two paths of one disk), null_blk
# behind them, the hosts connected to it, and runs of fio. Sourced by "setup", as it is
# for the guest only.

# shellcheck source=qemu/guest/nvme.sh
. "${BENCH%/bench}/guest/nvme.sh"

# hosts: those that can be measured: nvme-rdma, and Rivet by two policies.
hosts() {
	echo rdma
	! has_rivet || printf '%s\n' rivet naive
}

# fast_disk NAME: one that does nothing, at once.
fast_disk() {
	disk "$1" 1024 memory_backed=0 irqmode=0 completion_nsec=0 discard=0
}

# nvme_up OPTION...: each host is connected with these. DISKS[HOST] is what it has;
# DISKS[null] is a disk of the same kind, here. CTRLS[HOST] is its controller.
declare -gA DISKS CTRLS
nvme_up() {
	local host
	trap nvme_down EXIT # of the case
	modprobe_all nvmet nvme_rdma && modprobe null_blk nr_devices=0 || return
	# The first path's devices are those of perf's namespaces.
	network_rules && path_up 2 || return
	fast_disk fast && DISKS[null]=/dev/fast && port 2 10.78.0.2 param_max_queue_size=256 || return
	for host in $(hosts); do
		fast_disk "$host" && subsystem "$NQN:$host" && namespace "$NQN:$host" 1 "/dev/$host" && offer 2 "$NQN:$host" &&
			nvme_connect "$host" "$@" || return
	done
}

# nvme_connect HOST OPTION...
nvme_connect() {
	local host=$1 id=1 transport=rivet
	shift
	case $host in
	rdma) transport=rdma ;;
	rivet) id=2 && echo default >"$CONFIG/nvme/host_policy" ;;
	naive) id=3 && echo naive >"$CONFIG/nvme/host_policy" ;;
	esac
	# shellcheck disable=SC2086 # words
	if ! NVME_TRANSPORT=$transport HOSTNQN=$HOSTNQN:$host HOSTID=${HOSTID/#1/$id} connect_to "$NQN:$host" $AT_SECOND "$@"; then
		echo "$host: $SAID" >&2
		return 1
	fi
	wait_for 20 find_disk "$NQN:$host" && DISKS[$host]=$DISK CTRLS[$host]=$CTRL
}

nvme_down() {
	all_gone
	no_targets
	path_down 2
	no_network_rules
}

# fio_on HOST OPTION...: one run, for a time or, under the instruction clock, of $IOS
# requests. F holds what came of it: "lat" (ns, mean), "iops", "bytes" (per second),
# "total" (bytes).
declare -gA F
fio_on() {
	local disk=${DISKS[$1]} much=(--time_based --runtime=1) fields out
	shift
	[ "$CLOCK" != icount ] || much=("--number_ios=$IOS")
	out=$(fio --name=bench --filename="$disk" --direct=1 --ioengine=io_uring --norandommap --group_reporting --minimal \
		"${much[@]}" "$@" 2>&1) || { echo "fio $*: $out" >&2 && return 1; }
	IFS=';' read -r -a fields <<<"$(grep '^3;' <<<"$out")"
	# Of reads and writes only one kind is there.
	F[iops]=$((fields[7] + fields[48]))
	F[lat]=$(calc "(${fields[39]} + ${fields[80]}) * 1000")
	F[bytes]=$(((fields[6] + fields[47]) * 1024))
	F[total]=$(((fields[5] + fields[46]) * 1024))
}
