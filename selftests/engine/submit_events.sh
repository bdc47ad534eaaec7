#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# CQ events that come while CQs are polled: none is missed, whatever the mode and
# however often it changes, and what the poller counts adds up.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# On which CPUs soft-RoCE's workers may run, as all that have no CPU of their own.
WORKERS=/sys/devices/virtual/workqueue/cpumask
ALL=$(<"$WORKERS")

restore() { echo "$ALL" >"$WORKERS"; }

# storm CONNECTIONS KEY=VALUE...: as many lanes by the policy p on each of its CPUs, where
# each work request has a completion.
storm() {
	client op=read size=64 verify=1 "connections=$1" submitters=2 depth=8 policy=p "${@:2}" && start c a
}

# hurry: emulated CPUs under load have little time for a shell.
hurry() { chrt --rr --pid 1 "$BASHPID"; }

# adds_up: the load was done, and each of its completions was seen once. What counts
# besides are the session's own, and the marker of each lane.
adds_up() {
	await_done c 60 || return
	expect c "ops=$N" errors=0 miscompares=0 lost=0
	stats c
	echo "${S[posts]} posts, ${S[signalled]} signalled, ${S[completions]} completions, ${S[cq_events]} events," \
		"${S[kicks]} kicks, ${S[arms]} arms, ${S[polls]} polls, ${S[empty_polls]} empty, ${S[mode_changes]} mode changes"
	stats_are "posts=$N" "signalled=$N" "bytes=$((N * 64))" errors=0 cq_failures=0
	[ "${S[completions]}" -ge "$N" ] && [ "${S[completions]}" -le $((N + N / 20)) ] ||
		fail "${S[completions]} completions of $N work requests"
	# A CQ has one event at most each time that it is armed.
	[ "${S[cq_events]}" -le "${S[arms]}" ] || fail "${S[cq_events]} events, but ${S[arms]} arms"
	[ $((S[polls] - S[empty_polls])) -le "${S[completions]}" ] ||
		fail "${S[polls]} polls, ${S[empty_polls]} of them empty, found ${S[completions]} completions"
}

# By events alone; each has one kick.
by_events() {
	N=6000
	server && policy p memory=copy signal_every=1 completion=interrupt "$@" && storm 16 "count=$N" && adds_up || return
	[ "${S[cq_events]}" -ge 200 ] || fail "that is no storm: ${S[cq_events]} events"
	[ $((S[kicks] * 20)) -ge $((S[cq_events] * 19)) ] && [ $((S[kicks] * 20)) -le $((S[cq_events] * 21)) ] ||
		fail "${S[cq_events]} events, but ${S[kicks]} kicks"
}

# Modes and their times, in quick turns.
in_turns() {
	local word changes=0
	N=12000
	server && policy p memory=copy signal_every=1 && hurry && storm 8 "count=$N" || return
	while ! is_over c; do
		for word in interrupt busy adaptive coalesce; do
			echo "$word" >"$P"/p/completion
			case $((RANDOM % 3)) in
			0) echo $((RANDOM % 2 * RANDOM % 300)) >"$P"/p/busy_usecs ;;
			1) echo $((RANDOM % 2000 + 1)) >"$P"/p/coalesce_usecs ;;
			2) echo $((RANDOM % 64 + 1)) >"$P"/p/poll_budget ;;
			esac
			changes=$((changes + 1))
		done
		nap 0.01
	done
	adds_up
	echo "$changes changes"
	[ "$changes" -ge 12 ] && [ "${S[mode_changes]}" -ge 10 ] ||
		fail "$changes changes by hand, ${S[mode_changes]} of the mode"
}

# At any time a lane has as many completions as there were signalled work requests, but
# for those under way.
lanes_add_up() {
	local lane n
	server && policy p memory=copy signal_every=1 "$@" && hurry && storm 4 duration_ms=600000 && goes_on "the start" || return
	for n in 1 2 3; do
		for lane in 0 1 2 3 4 5 6 7; do
			read_lane "$lane"
			# They are read one after the other.
			[ "${S[completions]}" -le $((S[signalled] + 8)) ] &&
				[ "${S[signalled]}" -le $((S[completions] + 16)) ] ||
				fail "lane $lane: ${S[posts]} posts, ${S[signalled]} signalled, ${S[completions]} completions"
		done
		goes_on "round $n"
	done
}
read_lane() {
	local key value
	S=()
	# At once: what is read in parts is shown anew for each.
	while read -r key value; do S[$key]=$value; done <<<"$(<"/sys/kernel/debug/rivet/perf/c/lane$1/stats")"
}

# ---- whose CPU --------------------------------------------------------------

# kicks MASK REMOTE: the events of a lane on CPU 0, where soft-RoCE's workers have the
# CPUs of MASK.
kicks() {
	needs rxe
	echo "$1" >"$WORKERS" || fail "workers cannot be there"
	server && policy p memory=copy signal_every=1 completion=interrupt lanes=1 cpus=0 &&
		client op=read size=64 verify=1 submitters=1 depth=1 count=300 policy=p && start c a && await_done c || return
	stats c
	echo "${S[cq_events]} events, ${S[kicks]} kicks, ${S[remote_kicks]} of them from the other CPU"
	[ "${S[kicks]}" -ge 200 ] || fail "${S[kicks]} kicks"
	case $2 in
	none) stats_are remote_kicks=0 ;;
	all) [ $((S[remote_kicks] * 10)) -ge $((S[kicks] * 9)) ] || fail "remote_kicks: ${S[remote_kicks]} of ${S[kicks]}" ;;
	esac
}

tests by_events "by_events poll_budget=1" "by_events cpus=0" in_turns "lanes_add_up completion=interrupt" \
	"lanes_add_up completion=adaptive" "kicks 1 none" "kicks 2 all"
