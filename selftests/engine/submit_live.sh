#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What changes under a load by submitters: the live knobs of its policy, and the
# CPUs that there are. The load goes on, and what it does stays right.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

CPU1=/sys/devices/system/cpu/cpu1/online

restore() { echo 1 >"$CPU1"; }

# load KNOB=VALUE...: four submitters at work by the policy p.
load() {
	server && policy p "$@" &&
		client op=read size=5000 verify=1 submitters=4 depth=4 duration_ms=600000 policy=p && start c a || return
	goes_on "the start"
}

ends_well() {
	state_is c running || fail "the client is $V: $(<"$C"/c/error)"
	NS=a put c/stop 1
	state_is c "done" || fail "the client is $V: $(<"$C"/c/error)"
	expect c errors=0 miscompares=0
}

# ---- knobs ------------------------------------------------------------------

# changes MEMORY: knobs at their ends, in some order.
changes() {
	local pair
	load "memory=$1" "mr_cache_entries=64" || return
	for pair in completion=busy busy_usecs=0 busy_usecs=100000 poll_budget=1 completion=coalesce coalesce_usecs=10000 \
		coalesce_count=1 coalesce_usecs=1 completion=interrupt completion=adaptive busy_usecs=0 completion=interrupt; do
		put "/policies/p/${pair%=*}" "${pair#*=}"
		[ "$ERRNO" = OK ] || fail "$pair: $ERRNO"
		goes_on "$pair"
	done
	ends_well
}

# As fast as they can be written, by two at a time.
flood() {
	local n word pids=""
	load "memory=$1" || return
	for n in 1 2; do
		while :; do
			for word in interrupt coalesce busy adaptive; do
				echo "$word" >"$P"/p/completion
				echo $((RANDOM % 10000 + 1)) >"$P"/p/coalesce_usecs
				echo $((RANDOM % 300)) >"$P"/p/busy_usecs
				echo $((RANDOM % 256 + 1)) >"$P"/p/poll_budget
			done
		done &
		pids+=" $!"
	done
	for n in 1 2 3; do
		nap 0.5
		goes_on "round $n"
	done
	# shellcheck disable=SC2086 # a list
	{ kill -KILL $pids && wait $pids; } 2>/dev/null
	goes_on "all of it"
	ends_well
}

# many: sixteen connections, while each knob of their policy is turned.
many() {
	local pair
	server && policy p memory=cached && client op=read size=3000 verify=1 connections=16 submitters=1 depth=2 \
		duration_ms=600000 policy=p && start c a || return
	goes_on "the start"
	for pair in completion=busy busy_usecs=0 completion=coalesce coalesce_usecs=1 coalesce_count=1 coalesce_usecs=10000 \
		completion=interrupt poll_budget=1 completion=adaptive poll_budget=256 busy_usecs=1000 lanes=1 cpus=0 \
		lock=global memory=register mr_cache_entries=0 batch=1 signal_every=256 copy_threshold=0 completion=busy; do
		put "/policies/p/${pair%%=*}" "${pair#*=}"
		[ "$ERRNO" = OK ] || fail "$pair: $ERRNO"
		goes_on "$pair"
	done
	ends_well
}

# Those that are not live are for the next one, and the policy stays.
others() {
	local pair
	load memory=cached || return
	for pair in lanes=1 cpus=0 lock=global memory=register mr_cache_entries=0 batch=1 signal_every=256 copy_threshold=0; do
		echo "${pair#*=}" >"$P/p/${pair%%=*}"
		goes_on "$pair"
	done
	rmdir "$P"/p 2>/dev/null && fail "the policy was removed"
	get /policies/p users
	[ "$V" = 1 ] || fail "users is $V"
	stats c
	[ "${S[mr_hits]}" -gt 0 ] || fail "it is no cache any more"
	ends_well
	get /policies/p users
	[ "$V" = 0 ] || fail "users is $V after the end"
	rmdir "$P"/p || fail "the policy cannot be removed"
}

# ---- CPUs -------------------------------------------------------------------

elsewhere() { ! submitter_on "$1" 1; }

# cpu_goes SUBMITTER KNOB=VALUE...: CPU 1, on which that submitter is, goes and comes again.
cpu_goes() {
	local round
	load "${@:2}" || return
	wait_for 5 submitter_on "$1" 1 || fail "it is on CPU '$V'"
	for round in 1 2; do
		echo 0 >"$CPU1" || fail "CPU 1 cannot go"
		goes_on "CPU 1 went"
		# Who slept is moved when it wakes.
		wait_for 5 elsewhere "$1" || fail "it is still on CPU 1"
		nap 0.3
		echo 1 >"$CPU1" || fail "CPU 1 cannot come"
		goes_on "CPU 1 came, round $round"
		wait_for 5 submitter_on "$1" 1 || fail "round $round: it did not come back, it is on CPU '$V'"
	done
	ends_well
}

# Started while CPU 1 is not there: it stays without.
started_without() {
	server && policy p cpus=1 && echo 0 >"$CPU1" || return
	client op=read submitters=2 count=10 policy=p && NS=a put c/start 1
	[ "$ERRNO" = ENODEV ] && [ ${#LINES[@]} -eq 1 ] || fail "start: $ERRNO, ${#LINES[@]} lines in the log"
	has_error c "none of the policy's cpus is online"
	echo all >"$P"/p/cpus
	NS=a put c/start 1
	[ "$ERRNO" = OK ] || fail "start: $ERRNO"
	await_done c && expect c ops=10
	echo 600000 >"$C"/c/duration_ms
	start c a && goes_on "the start"
	echo 1 >"$CPU1"
	goes_on "CPU 1 came"
	wait_for 5 submitter_on 1 0 || fail "it is on CPU '$V'"
	ends_well
}

# It goes while a load begins and while one ends.
around() {
	server && policy p memory=cached || return
	client op=read size=5000 verify=1 submitters=4 depth=4 count=60 policy=p || return
	while :; do
		echo 0 >"$CPU1"
		echo 1 >"$CPU1"
	done 2>/dev/null &
	for _ in 1 2 3 4 5 6 7 8; do
		start c a && await_done c 20 && expect c ops=60 errors=0 miscompares=0
	done
	{ kill -KILL $! && wait $!; } 2>/dev/null
}

tests "changes register" "changes cached" "flood fast" many others \
	"cpu_goes 1" "cpu_goes 0 cpus=1 completion=interrupt memory=cached" \
	"cpu_goes 1 completion=busy lock=global" \
	"cpu_goes 1 completion=coalesce memory=register lock=global" started_without around
