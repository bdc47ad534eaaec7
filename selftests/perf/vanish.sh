#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The network between the ends stops to carry anything: each of them ends with an
# error after its timeout_ms.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"
needs network

DOWN="" SILENT=""

restore() {
	[ -z "$SILENT" ] || { tc -n a qdisc del dev va root && tc -n b qdisc del dev vb root; }
	[ -z "$DOWN" ] || ip -n a link set va up
	[ -z "$DOWN" ] || renew
	DOWN="" SILENT=""
}

# Nothing passes, and nobody is told.
silent() {
	SILENT=1
	tc -n a qdisc add dev va root netem loss 100%
	tc -n b qdisc add dev vb root netem loss 100%
}

# The interface goes down, and the other one notices.
down() { DOWN=1 && ip -n a link set va down; }

# vanishes HOW KEY=VALUE...
vanishes() {
	local begin ms
	server timeout_ms=1000 "${@: -1}" &&
		client timeout_ms=1000 duration_ms=60000 "${@:2}" && start c a || return
	nap 0.3
	state_is c running || fail "the client is $V"
	"$1"
	begin=${EPOCHREALTIME/./}
	await_failed c 8
	wait_for 8 result_is s sessions_failed 1 || fail "the server's session goes on"
	ms=$(((${EPOCHREALTIME/./} - begin) / 1000))
	echo "after $ms ms"
	# The rest is slack, as two CPUs are emulated. When a link goes down the CM itself
	# takes up to two seconds more, now and then, to let go of a connection.
	[ "$ms" -le $((${DOWN:-0} ? 5000 : 3000)) ] || fail "it took $ms ms"
	for end in c s; do
		get "$end" error
		[ -n "$V" ] || fail "$end: there is no error"
		echo "$end: $V"
	done
	state_is s running || fail "the server is $V"
	restore
	rmdir "$C"/c
	wait_for 5 serves_again || fail "the server does not serve any more"
}
# After "down" the server has to notice the new device first.
serves_again() { client count=20 && NS=a put c/start 1 && [ "$ERRNO" = OK ] && await_done c || { rmdir "$C"/c && false; }; }

list=()
for policy in interrupt latency; do
	for load in "transport=rc depth=4" "transport=rc op=write_ping" "transport=uc depth=4" \
		"transport=ud" "transport=ud op=send_ping" "op=exchange_out depth=4" "op=exchange_in depth=4"; do
		[[ $policy != interrupt || $load != *write_ping* ]] || continue
		list+=("vanishes silent $load policy=$policy")
	done
done
tests "${list[@]}" "vanishes down transport=rc policy=interrupt" "vanishes down transport=ud policy=latency"
