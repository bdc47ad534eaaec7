#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Submitters that poll at full speed leave their CPU to others: an ordinary task on
# it gets more than the scheduler's tick would give it, and no submitter keeps the
# CPU until the tick takes it away.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# A tick, ns.
TICK=4000000

# used PID: USED is the CPU time that it had, ns, and TURNS how often it got a CPU.
used() { read -r USED _ TURNS <"/proc/$1/schedstat"; }

# all_used: the same of all submitters.
all_used() {
	local pid used=0 turns=0
	for pid in "${PIDS[@]}"; do
		used "$pid"
		used=$((used + USED)) turns=$((turns + TURNS))
	done
	USED=$used TURNS=$turns
}

# shares KNOB=VALUE...: four submitters on CPU 1, and a shell there that never sleeps.
shares() {
	server && policy p cpus=1 lanes=1 memory=copy signal_every=1 busy_usecs=100000 "$@" &&
		client op=read size=4096 verify=1 submitters=4 depth=32 duration_ms=600000 policy=p && start c a || return
	goes_on "the start"
	mapfile -t PIDS < <(pgrep '^rivet_sub/')
	[ ${#PIDS[@]} -eq 4 ] || fail "there are ${#PIDS[@]} submitters"
	while :; do :; done &
	local task=$! task_used used turns
	taskset -p 2 "$task" >/dev/null || fail "it cannot be on CPU 1"
	used "$task" && task_used=$USED
	all_used && used=$USED turns=$TURNS
	# For so many ticks of that CPU.
	while [ $((USED - used)) -lt $((50 * TICK)) ]; do
		nap 0.1
		all_used
	done
	used=$((USED - used)) turns=$((TURNS - turns))
	used "$task" && task_used=$((USED - task_used))
	goes_on "a task on its CPU"
	expect c errors=0 miscompares=0
	echo "a task had $((task_used / 1000000)) ms, the submitters $((used / 1000000)) in $turns turns"
	# Among five the tick would give it a fifth.
	[ $((task_used * 10)) -ge $(((task_used + used) * 3)) ] || fail "the task had less than 3/10 of the CPU"
	[ "$turns" -gt $((used / TICK)) ] || fail "submitters keep the CPU for more than a tick"
}

tests "shares completion=busy poll_budget=1" "shares completion=busy" "shares completion=adaptive" "shares completion=adaptive lock=global"
