#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# How a client's run ends by itself, and the next begins.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

by_count() {
	server && client count=101 connections=4 depth=3 && start c a && await_done c || return
	expect c ops=101 sessions=1
	get c count && [ "$V" = 101 ] || fail "count is $V"
	get c duration_ms && [ "$V" = 0 ] || fail "duration_ms is $V"
}

# The last goal that was set counts.
by_duration() {
	local ms
	server && client count=5 duration_ms=700 && start c a && await_done c || return
	results c
	ms=$((R[elapsed_ns] / 1000000))
	[ "$ms" -ge 600 ] && [ "$ms" -le 1500 ] || fail "700 ms took $ms ms"
	[ "${R[ops]}" -gt 5 ] || fail "${R[ops]} operations"
}

# A server is not stopped by what its clients do.
after_done() {
	server && client count=50 && start c a && await_done c && expect c ops=50 || return
	echo 30 >"$C"/c/count
	start c a && await_done c && expect c ops=30 bytes=1920 sessions=1
	expect s ops=80 sessions=2
}

after_failed() {
	client count=20 || return
	NS=a put c/start 1
	[ "$ERRNO" = ECONNREFUSED ] || fail "start: $ERRNO"
	state_is c failed || fail "the state is $V"
	server && start c a && await_done c && expect c ops=20 sessions_failed=0
	[ "$(<"$C"/c/error)" = "" ] || fail "the error is still there: $(<"$C"/c/error)"
}

server_again() {
	server && run_load 10
	NS=b put s/stop 1
	[ "$ERRNO" = OK ] || fail "stop: $ERRNO"
	state_is s "done" || fail "the state is $V"
	client || return
	NS=a put c/start 1
	[ "$ERRNO" = ECONNREFUSED ] || fail "start without a server: $ERRNO"
	rmdir "$C"/c
	start s b && run_load 15 && expect s ops=15 sessions=1
}

# signal NAME: to a task that waits for a client to connect.
signal() {
	needs network
	local begin out
	out=$(mktemp)
	client address=10.77.0.99 timeout_ms=20000 || return
	attr_write -n a "$C"/c/start 1 >"$out" &
	wait_for 5 state_is c running || fail "the state is $V"
	nap 0.3
	begin=$SECONDS
	kill -"$1" $!
	wait $! 2>/dev/null
	[ $((SECONDS - begin)) -le 3 ] || fail "it took $((SECONDS - begin)) s"
	wait_for 2 not_running || fail "the client still runs"
	if [ "$1" != KILL ]; then
		[ "$(head -n 1 "$out")" = EINTR ] || fail "start: $(<"$out")"
		grep -q 'start: .*interrupted' "$out" || fail "log: $(<"$out")"
	fi
	rm "$out"
	# Nothing hinders the next.
	echo "$SERVER" >"$C"/c/address
	echo 10 >"$C"/c/count
	server && start c a && await_done c && expect c ops=10
}
not_running() { get c state && [ "$V" != running ]; }

tests by_count by_duration after_done after_failed server_again "signal INT" "signal TERM" "signal KILL"
