#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Many connections of one client, and several clients of one server.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# connections TRANSPORT
connections() {
	server || return
	run_load 320 transport="$1" op=send size=200 depth=2 connections=64
	expect s ops=320 sessions=1 sessions_failed=0
}

# Fewer operations than connections: some have nothing to do.
fewer_operations_than_connections() {
	server && run_load 3 connections=8
	expect s ops=3 sessions=1 sessions_failed=0
}

# clients POLICY: they run at the same time; the server's sum is theirs.
clients() {
	local i sum=0
	server policy="$1" || return
	for i in 1 2 3 4; do
		client "c$i" op=send verify=1 duration_ms=1500 connections=2 depth=4 policy="$1" &&
			start "c$i" a
	done
	for i in 1 2 3 4; do
		await_done "c$i" && expect "c$i" errors=0 miscompares=0 lost=0
		[ "${R[ops]}" -gt 0 ] || fail "c$i did nothing"
		sum=$((sum + R[ops]))
	done
	expect s ops="$sum" bytes=$((sum * 64)) sessions=4 sessions_failed=0 miscompares=0
}

tests "connections rc" "connections uc" "connections ud" \
	fewer_operations_than_connections "clients interrupt" "clients latency"
