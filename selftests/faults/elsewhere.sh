#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Allocations that fail where nobody configures: in the events of the connection
# manager, in sessions' threads and submitters, in work items. Some of them do, by
# chance, over many starts, connections and changes of policies. Whatever comes of
# it, an end is over within its timeout, and says why.

# shellcheck source=selftests/inject.sh
. "${0%/*}/../inject.sh"

ROUNDS=12

# some_faults PERCENT TIMES: from now on; 0 stops it.
some_faults() {
	set_faults times "${2:--1}"
	set_faults probability "$1"
}

# over NAME: it has to end by itself.
over() {
	wait_for 15 is_over "$1" || fail "$1 still runs"
	[ "$V" != failed ] || { get "$1" error && [ -n "$V" ] || fail "$1 has failed without a word"; }
}

# connects KEY=VALUE...: clients come and go, with what fails at either end.
connects() {
	local n started=0 whole=0 percent
	can_inject
	filter
	policy p "memory=${1#*=}" && shift
	server timeout_ms=2000 policy=p || return
	for ((n = 1; n <= ROUNDS; n++)); do
		client verify=1 count=60 timeout_ms=2000 policy=p "$@" || return
		percent=$((n % 4 == 0 ? 40 : n % 4))
		some_faults "$percent" $((n % 2 ? 1 : -1))
		NS=a put c/start 1
		[ "$ERRNO" != OK ] || { started=$((started + 1)) && over c; }
		some_faults 0
		state_is c "done" && whole=$((whole + 1)) && expect c ops=60 errors=0 miscompares=0
		rmdir "$C"/c || fail "it cannot be removed"
	done
	progress "$ROUNDS clients, $started were connected, $whole had no failure"
	state_is s running || fail "the server is $V: $(<"$C"/s/error)"
	serves
}

# A server that starts, and is met, while allocations fail.
servers() {
	local n up=0
	can_inject
	filter
	make s role=server address="$SERVER" timeout_ms=2000 || return
	for ((n = 1; n <= ROUNDS; n++)); do
		client count=20 timeout_ms=2000 || return
		some_faults $((n * 3))
		NS=b put s/start 1
		[ "$ERRNO" != OK ] || up=$((up + 1))
		NS=a put c/start 1
		[ "$ERRNO" != OK ] || over c
		some_faults 0
		NS=b put s/stop 1
		[ "$ERRNO" = OK ] || fail "stop: $ERRNO"
		rmdir "$C"/c || fail "it cannot be removed"
	done
	progress "$ROUNDS starts, $up succeeded"
	start s b && serves
}

# Policies turn under a load that goes on, or fails and says so.
turns() {
	local n value
	can_inject
	filter
	policy p && server || return
	for ((n = 1; n <= ROUNDS; n++)); do
		client op=read verify=1 submitters=2 depth=4 duration_ms=600000 timeout_ms=2000 policy=p && start c a || return
		some_faults $((n % 3 == 0 ? 30 : 8))
		for value in interrupt coalesce busy adaptive; do
			put /policies/p/completion "$value"
			put /policies/p/coalesce_usecs $((RANDOM % 10000 + 1))
			put /policies/p/poll_budget $((RANDOM % 256 + 1))
			nap 0.05
		done
		NS=a put c/stop 1
		some_faults 0
		is_over c || fail "the client still runs"
		expect c miscompares=0
		rmdir "$C"/c || fail "it cannot be removed"
	done
	serves
}

restore() { no_faults; }

tests "connects memory=auto op=send" "connects memory=register op=write connections=3 depth=4 size=10000" \
	"connects memory=cached op=read submitters=2 depth=4 size=20000" \
	"connects memory=fast op=exchange_out depth=4 size=20000" \
	"connects memory=fast op=exchange_in depth=2 size=5000" \
	"connects memory=copy op=send transport=ud depth=4" servers turns
