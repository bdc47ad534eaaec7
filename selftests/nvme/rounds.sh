#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Connected and disconnected again and again: nothing is left, and no trend in memory.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"

# in_use: KiB that the kernel uses for itself, by what it counts of itself; the least of
# several looks, as what is freed by RCU and workers comes late.
in_use() {
	local key value sum least="" n
	for n in 1 2 3; do
		sync
		echo 3 >/proc/sys/vm/drop_caches
		nap 0.3
		sum=0
		while read -r key value _; do
			case $key in
			SUnreclaim: | KernelStack: | PageTables: | VmallocUsed: | Percpu:) sum=$((sum + value)) ;;
			esac
		done </proc/meminfo
		[ -n "$least" ] && [ "$least" -le "$sum" ] || least=$sum
	done
	echo "$least"
}

one_round() {
	# shellcheck disable=SC2086 # words
	connect_to $NQN $AT_FIRST || { fail "connect: $SAID" && return 1; }
	if [ $((ROUND % 10)) -eq 0 ]; then
		wait_for 20 find_disk "$NQN" || { fail "no disk" && return 1; }
		dd if=/dev/zero of="$DISK" bs=64k count=4 oflag=direct status=none || fail "dd"
	fi
	nvme disconnect -n "$NQN" >/dev/null || fail "disconnect"
}

# rounds COUNT: in four parts; each must not take more than the one before, for ever.
# The first does not count, as it fills caches. Half of a KiB for each round is too
# much; what a queue or a request needs is more.
rounds() {
	local part quarter=$(($1 / 4)) used=() text
	a_target 16 || return
	ROUND=0
	for part in 1 2 3 4; do
		while [ "$ROUND" -lt $((part * quarter)) ]; do
			ROUND=$((ROUND + 1))
			one_round || return
		done
		wait_for 20 no_ctrls || fail "controllers are left after round $ROUND"
		wait_for 20 no_disks || fail "disks are left after round $ROUND"
		used+=("$(in_use)")
		progress "after $ROUND rounds: ${used[-1]} KiB"
	done
	text="KiB after each quarter: ${used[*]}"
	if [ $((used[3] - used[1])) -gt $((quarter)) ] && [ "${used[3]}" -gt "${used[2]}" ] && [ "${used[2]}" -gt "${used[1]}" ]; then
		fail "it takes more with each round: $text"
	fi
	return 0
}

# Many at a time.
crowd() {
	local n
	disk disk0 16 && port 1 "$SERVER" || { fail "no target" && return; }
	for n in {1..8}; do
		subsystem "$NQN:$n" && namespace "$NQN:$n" 1 /dev/disk0 && offer 1 "$NQN:$n" || { fail "no target $n" && return; }
	done
	for n in {1..8}; do
		# shellcheck disable=SC2086 # words
		nvme connect -t "$NVME_TRANSPORT" -n $NQN:$n -q $HOSTNQN -I $HOSTID $AT_FIRST >/dev/null 2>&1 &
	done
	wait
	[ "$(cat /sys/class/nvme/nvme*/state | sort | uniq -c | tr -s ' ')" = " 8 live" ] ||
		fail "eight at a time: $(cat /sys/class/nvme/nvme*/state | sort | uniq -c)"
	nvme disconnect-all >/dev/null || fail "disconnect-all"
	wait_for 30 no_ctrls || fail "controllers are left"
}

nvme_tests "rounds ${ROUNDS:-200}" crowd
