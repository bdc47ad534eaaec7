#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What the knobs of completions and the lock change, by what a lane and its poller
# count: turned while submitters run, and set before they start.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

LANE=/sys/kernel/debug/rivet/perf/c/lane0/stats

# load DEPTH KNOB=VALUE...: one submitter at work on one lane, by the policy p. Each
# operation is one work request with a completion of its own.
load() {
	policy p lanes=1 cpus=0 memory=copy signal_every=1 "${@:2}" &&
		client op=read size=8192 verify=1 submitters=1 "depth=$1" duration_ms=600000 policy=p && start c a || return
	goes_on "the start"
}

# again KNOB=VALUE...: the same anew, with these knobs from the start.
again() {
	NS=a put c/stop 1
	expect c errors=0 miscompares=0
	turn "$@"
	start c a && goes_on "the start with $*"
}

# How knobs are set: for those who run, or for those who start.
live() { turn "$@"; }
anew() { again "$@"; }

# count N: what the lane and its poller count while they take N completions or more, in
# D; "finds" are polls that found something.
declare -A D S0
count() {
	# What was there when the knobs were turned is over.
	goes_on "the knobs" || return
	look
	local key
	S0=()
	for key in "${!S[@]}"; do S0[$key]=${S[$key]}; done
	wait_for 20 has_taken $((S0[completions] + $1)) || fail "no $1 completions in 20 s"
	for key in "${!S0[@]}"; do D[$key]=$((S[$key] - S0[$key])); done
	D[finds]=$((D[polls] - D[empty_polls]))
}
has_taken() { look && [ "${S[completions]}" -ge "$1" ]; }

# look: S[key] is what the lane says, all of one moment.
look() {
	local key value
	S=()
	# At once: what is read in parts is shown anew for each.
	while read -r key value; do S[$key]=$value; done <<<"$(<"$LANE")"
}

# each KEY LOW HIGH: so many hundredths of it there were for a completion. V is how many.
each() {
	V=$((D[$1] * 100 / D[completions]))
	[ "$V" -ge "$2" ] && [ "$V" -le "$3" ] ||
		fail "$SETTING: ${D[$1]} $1 and ${D[completions]} completions: $V %, not $2 to $3"
}

# with HOW KNOB=VALUE...: HOW is live or anew. SETTING is for messages.
with() {
	SETTING="${*:2}"
	"$@" && count "$COUNT" || return
	echo "$SETTING: ${D[completions]} completions, ${D[cq_events]} events, ${D[arms]} arms, ${D[polls]} polls," \
		"${D[empty_polls]} empty, ${D[mode_changes]} mode changes"
}

# many_and_few HOW MANY FEW KEY LEAST: with the knob MANY there are so many hundredths of KEY
# for a completion or more, and with FEW a third of that or less.
many_and_few() {
	local many=0
	COUNT=300
	with "$1" "$2" && each "$4" "$5" 1000 && many=$V
	with "$1" "$3" && each "$4" 0 $((many / 3))
}

# ---- moderation -------------------------------------------------------------

# completion HOW: alone, an operation has its event, or none.
completion() {
	server && load 1 completion=interrupt busy_usecs=100000 coalesce_usecs=10000 || return
	COUNT=80
	with "$1" completion=interrupt && each cq_events 90 105 && each empty_polls 0 10
	with "$1" completion=busy && each cq_events 0 10 && each empty_polls 200 1000000
	with "$1" completion=coalesce && each cq_events 0 50 && each empty_polls 0 100
	with "$1" completion=adaptive && each cq_events 0 10 && each empty_polls 200 1000000
	# It spins no more, and holds nothing.
	with "$1" completion=adaptive busy_usecs=0 coalesce_usecs=1 && each cq_events 80 105
}

# A hold ends after so long, and an event is waited for where nothing came meanwhile.
coalesce_usecs() {
	server && load 32 completion=coalesce coalesce_count=1024 || return
	many_and_few "$1" coalesce_usecs=1 coalesce_usecs=10000 cq_events 5
}

# Or when so many are there.
coalesce_count() {
	server && load 32 completion=coalesce coalesce_usecs=10000 || return
	many_and_few "$1" coalesce_count=1 coalesce_count=1024 cq_events 3
}

busy_usecs() {
	server && load 1 completion=busy || return
	COUNT=80
	with "$1" busy_usecs=0 && each cq_events 80 105 && each empty_polls 0 500
	with "$1" busy_usecs=100000 && each cq_events 0 10 && each empty_polls 1000 10000000
}

# One at a time, or what a hold has brought.
poll_budget() {
	server && load 32 completion=coalesce coalesce_usecs=10000 coalesce_count=1024 || return
	many_and_few "$1" poll_budget=1 poll_budget=256 finds 95
	with "$1" poll_budget=1 && each finds 95 105
}

# ---- lock -------------------------------------------------------------------

# lock_waits LOCK: of four submitters on two CPUs, each of which has a lane. Once they are
# at work nobody of another CPU wants a lane's lock: before, who starts them does.
lock_waits() {
	server && policy p memory=copy "lock=$1" completion=busy busy_usecs=100000 &&
		client op=read size=512 verify=1 submitters=4 depth=8 duration_ms=600000 policy=p && start c a || return
	goes_on "the start"
	stats c && results c
	local waits=${S[lock_waits]} ops=${R[ops]}
	case $1 in
	percpu) wait_for 20 has_done $((ops + 1000)) || fail "no 1000 operations" ;;
	global) wait_for 20 has_waited $((waits + 5)) || fail "nobody waited for the lock" ;;
	esac
	stats c && results c
	echo "$((S[lock_waits] - waits)) lock waits in $((R[ops] - ops)) operations, $waits before"
	[ "$1" = global ] || stats_are "lock_waits=$waits"
}
has_waited() { stats c && [ "${S[lock_waits]}" -ge "$1" ]; }

list=()
for how in live anew; do
	for knob in completion coalesce_usecs coalesce_count busy_usecs poll_budget; do list+=("$knob $how"); done
done
tests "${list[@]}" "lock_waits percpu" "lock_waits global"
