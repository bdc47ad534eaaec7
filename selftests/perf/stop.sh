#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Ends that are stopped or removed while they run: promptly, and the other end
# learns of it.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# up KEY=VALUE...: server and client, at work.
up() {
	server timeout_ms=2000 && client duration_ms=60000 timeout_ms=2000 depth=4 "$@" && start c a || return
	wait_for 5 working || fail "no operation was done"
}
working() { results c && [ "${R[ops]}" -gt 0 ]; }

promptly() {
	[ $((SECONDS - BEGIN)) -le 3 ] || fail "it took $((SECONDS - BEGIN)) s"
}

server_noticed() {
	wait_for 5 result_is s sessions_failed 1 || fail "sessions_failed is ${R[sessions_failed]}"
	has_error s "$1"
	state_is s running || fail "the server is $V"
	client2_is_served
}
client2_is_served() { client c2 count=20 && start c2 a && await_done c2 && expect c2 ops=20; }

client_stops() {
	up "$@" || return
	BEGIN=$SECONDS
	NS=a put c/stop 1
	[ "$ERRNO" = OK ] || fail "stop: $ERRNO"
	promptly
	state_is c "done" || fail "the state is $V"
	[ -z "$(<"$C"/c/error)" ] || fail "error: $(<"$C"/c/error)"
	working || fail "the result is gone"
	server_noticed "the client ended the connection"
}

client_goes() {
	up "$@" || return
	BEGIN=$SECONDS
	rmdir "$C"/c || fail "the client cannot be removed"
	promptly
	server_noticed "the client ended the connection"
}

client_noticed() {
	await_failed c 5
	has_error c "ended the connection"
	expect c sessions_failed=1
}

server_stops() {
	up "$@" || return
	BEGIN=$SECONDS
	put s/stop 1
	promptly
	state_is s "done" || fail "the state is $V"
	client_noticed
	# Stopping what does not run is no error.
	put s/stop 1
	[ "$ERRNO" = OK ] || fail "stop: $ERRNO"
}

server_goes() {
	up "$@" || return
	BEGIN=$SECONDS
	rmdir "$C"/s || fail "the server cannot be removed"
	promptly
	client_noticed
}

# A client that still connects: its start ends with EINTR.
connecting_stops() {
	needs network
	local out
	out=$(mktemp)
	client address=10.77.0.99 timeout_ms=20000 || return
	attr_write -n a "$C"/c/start 1 >"$out" &
	wait_for 5 state_is c running || fail "the state is $V"
	nap 0.3
	BEGIN=$SECONDS
	put c/stop 1
	wait $!
	promptly
	[ "$(head -n 1 "$out")" = EINTR ] || fail "start: $(<"$out")"
	state_is c "done" || fail "the state is $V"
	rm "$out"
}

tests "client_stops op=send policy=interrupt" "client_stops transport=ud policy=latency" "client_stops op=write_ping depth=1" \
	"client_stops op=exchange_in size=65536" "client_goes op=exchange_out connections=8" \
	"server_stops op=exchange_out size=65536" "server_goes op=exchange_in connections=8 policy=interrupt" \
	"client_goes op=read connections=8" "client_goes transport=uc op=write" \
	"server_stops op=send" "server_stops transport=ud" "server_stops op=write_ping depth=1" \
	"server_goes op=write_imm connections=8" "server_goes transport=uc policy=latency" \
	connecting_stops
