#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# A network namespace whose name is deleted lives on as long as an end works in
# it, and goes with the end.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"
needs namespaces

restore() {
	if [ ! -e /run/netns/a ] || [ ! -e /run/netns/b ]; then
		{ net_down && sleep 0.5; } 2>/dev/null
		net_up
	fi
}

gone() { [ ! -d "/sys/class/infiniband/rxe$1" ]; }

# deleted NAMESPACES KEY=VALUE...
deleted() {
	local ns names=${1//,/ }
	server timeout_ms=2000 && client timeout_ms=2000 duration_ms=60000 depth=4 "${@:2}" && start c a || return
	for ns in $names; do ip netns delete "$ns"; done
	results c
	local before=${R[ops]}
	nap 1
	results c
	state_is c running && [ "${R[ops]}" -gt "$before" ] || fail "the traffic ended: $(<"$C"/c/error)"
	put c/stop 1
	state_is c "done" || fail "the client is $V"
	rmdir "$C"/c "$C"/s || fail "the ends cannot be removed"
	for ns in $names; do
		wait_for 15 gone "$ns" || fail "rxe$ns is still there"
	done
}

tests "deleted b op=send" "deleted a transport=ud" "deleted a,b op=write policy=latency"
