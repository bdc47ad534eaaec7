#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Loads by submitters that do not end by themselves: ends are stopped or removed,
# devices, networks and namespaces go, packets are lost. All end promptly, say
# why, and leave nothing.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

DOWN=""

# As they are, whatever a test has come to.
restore() {
	if [ ! -e /run/netns/a ] || [ ! -e /run/netns/b ]; then
		{ net_down && sleep 0.5; } 2>/dev/null
		net_up
		return
	fi
	{ tc -n a qdisc del dev va root && tc -n b qdisc del dev vb root; } 2>/dev/null
	[ -z "$DOWN" ] || { ip -n a link set va up && renew; }
	DOWN=""
	link a && link b
}

# load MEMORY KEY=VALUE...: a server, and a client whose submitters are at work. Some
# buffers are found in the cache, others make room.
load() {
	server timeout_ms="${TIMEOUT:-1500}" && policy p "memory=$1" mr_cache_entries=64 &&
		client op=read size=5000 verify=1 submitters=4 depth=4 buffers=40 timeout_ms="${TIMEOUT:-1500}" duration_ms=60000 policy=p \
			"${@:2}" && start c a || return
	wait_for 10 working || fail "no operation was done"
	BEGIN=$SECONDS
}
working() { results c && [ "${R[ops]}" -gt 50 ]; }

promptly() {
	[ $((SECONDS - BEGIN)) -le "$1" ] || fail "it took $((SECONDS - BEGIN)) s"
}

# server_noticed WORDS: it tells, and serves others.
server_noticed() {
	wait_for 8 result_is s sessions_failed 1 || fail "sessions_failed is ${R[sessions_failed]}"
	has_error s "$1"
	state_is s running || fail "the server is $V"
	served
}
served() {
	client c2 op=read size=5000 verify=1 submitters=2 depth=2 count=20 policy=p && start c2 a && await_done c2 &&
		expect c2 ops=20 miscompares=0
}

client_stops() {
	load "$@" || return
	NS=a put c/stop 1
	[ "$ERRNO" = OK ] || fail "stop: $ERRNO"
	promptly 3
	state_is c "done" || fail "the state is $V"
	[ -z "$(<"$C"/c/error)" ] || fail "error: $(<"$C"/c/error)"
	right c
	server_noticed "the client ended the connection"
}

client_goes() {
	load "$@" || return
	rmdir "$C"/c || fail "the client cannot be removed"
	promptly 3
	server_noticed "the client ended the connection"
}

server_stops() {
	load "$@" || return
	put s/stop 1
	promptly 3
	client_noticed
}

server_goes() {
	load "$@" || return
	rmdir "$C"/s || fail "the server cannot be removed"
	promptly 3
	client_noticed
}

client_noticed() {
	await_failed c 8
	has_error c "ended the connection"
	expect c sessions_failed=1
	right c
}

# A device goes.
unlinked() {
	await_failed c 8
	wait_for 8 result_is s sessions_failed 1 || fail "the server's session goes on"
	promptly 8
	echo "client: $(<"$C"/c/error)"
	echo "server: $(<"$C"/s/error)"
	right c
	state_is s running || fail "the server is $V"
	link "$1"
	rmdir "$C"/c
	wait_for 8 served_again || fail "the server does not serve any more"
}
served_again() {
	client op=read size=5000 verify=1 submitters=2 depth=2 count=20 policy=p && NS=a put c/start 1 &&
		[ "$ERRNO" = OK ] && await_done c || { rmdir "$C"/c && false; }
}

client_device() {
	needs namespaces
	load "$@" || return
	rdma link delete "$DEV_A" || fail "the device cannot be deleted"
	[ ! -d "/sys/class/infiniband/$DEV_A" ] || fail "the device is still there"
	unlinked a
}

server_device() {
	needs links
	load "$@" || return
	rdma link delete "$DEV_B" || fail "the device cannot be deleted"
	[ ! -d "/sys/class/infiniband/$DEV_B" ] || fail "the device is still there"
	unlinked b
}

# loses PERCENT: of the packets, both ways, from now on.
loses() { tc -n a qdisc add dev va root netem loss "$1" && tc -n b qdisc add dev vb root netem loss "$1"; }

# The network carries nothing any more, and nobody is told.
silent() {
	needs network
	load "$@" || return
	loses 100% || fail "packets cannot be lost"
	vanished
}

# An interface goes down.
down() {
	needs network
	load "$@" || return
	DOWN=1
	ip -n a link set va down
	vanished
}

vanished() {
	await_failed c 8
	wait_for 8 result_is s sessions_failed 1 || fail "the server's session goes on"
	promptly 6
	for end in c s; do
		get "$end" error
		[ -n "$V" ] || fail "$end: there is no error"
		echo "$end: $V"
	done
	right c
	state_is s running || fail "the server is $V"
	restore
	rmdir "$C"/c
	wait_for 8 served_again || fail "the server does not serve any more"
}

# It is stopped when nothing is carried any more.
stopped_in_silence() {
	needs network
	TIMEOUT=30000
	load "$@" || return
	loses 100% || fail "packets cannot be lost"
	BEGIN=$SECONDS
	NS=a put c/stop 1
	promptly 4
	state_is c "done" || fail "the state is $V"
	right c
}

# The namespaces' names go; the ends that work in them keep them.
deleted() {
	needs namespaces
	local ns before
	TIMEOUT=5000
	load "$@" || return
	for ns in a b; do ip netns delete "$ns"; done
	results c
	before=${R[ops]}
	nap 1
	results c
	state_is c running && [ "${R[ops]}" -gt "$before" ] || fail "the traffic ended: $(<"$C"/c/error)"
	put c/stop 1
	state_is c "done" || fail "the client is $V"
	right c
	rmdir "$C"/c "$C"/s || fail "the ends cannot be removed"
	for ns in a b; do
		wait_for 15 gone "$ns" || fail "rxe$ns is still there"
	done
}
gone() { [ ! -d "/sys/class/infiniband/rxe$1" ]; }

# One packet of a hundred is lost, both ways.
lossy() {
	needs network
	loses 1% || fail "packets cannot be lost"
	server && policy p "memory=$1" mr_cache_entries=32 &&
		client op=read size=5000 verify=1 count=200 submitters=2 depth=4 buffers=24 policy=p && start c a || return
	wait_for 60 is_over c
	await_done c 1 && expect c ops=200 errors=0 lost=0
	right c
}

# The module cannot go, and nothing has changed.
unload() {
	load "$@" || return
	rmmod rivet 2>/dev/null && fail "it was unloaded"
	rmdir "$P"/p 2>/dev/null && fail "the policy was removed"
	results c
	before=${R[ops]}
	wait_for 5 more_ops "$before" || fail "nothing goes on"
}
more_ops() { results c && [ "${R[ops]}" -gt "$1" ]; }

# Started and stopped at once, again and again.
hasty() {
	server && policy p "memory=$1" || return
	client op=read size=5000 verify=1 submitters=8 depth=4 duration_ms=60000 policy=p || return
	for _ in 1 2 3 4 5; do
		start c a
		NS=a put c/stop 1
		state_is c "done" || fail "the state is $V: $(<"$C"/c/error)"
		right c
	done
	served
}

list=()
for memory in register fast_waited fast cached; do
	for way in client_stops client_goes server_goes client_device silent lossy hasty; do
		list+=("$way $memory")
	done
done
tests "${list[@]}" "server_stops fast" "server_device cached" "stopped_in_silence fast" "stopped_in_silence cached" \
	"lossy copy" "down cached" "deleted fast" "client_device copy size=64" "unload cached"
