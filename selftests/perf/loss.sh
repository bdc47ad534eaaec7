#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# A network that loses one packet of a hundred, both ways: rc repeats, uc and ud
# count what did not arrive; no payload is ever wrong.
#
# Messages of uc are of one packet here: rxe drops everything that follows a
# message of several packets whose last one was lost. READs of exchange_in are of
# one packet as well: rxe breaks a QP when the acknowledgement of an earlier SEND
# comes, again, between two packets of a READ's answer.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"
needs network

restore() {
	tc -n a qdisc del dev va root
	tc -n b qdisc del dev vb root
} 2>/dev/null

# lossy COUNT KEY=VALUE...
lossy() {
	tc -n a qdisc add dev va root netem loss 1% && tc -n b qdisc add dev vb root netem loss 1% || return
	server && client verify=1 count="$1" "${@:2}" && start c a && await_done c 60 || return
	expect c errors=0 miscompares=0
	expect s miscompares=0 sessions_failed=0
}

reliable() {
	lossy "$@" && expect c ops="$1" lost=0
}

# What the server took and what was lost is what was sent.
unreliable() {
	local arrived
	lossy "$@" || return
	results s
	arrived=${R[ops]}
	results c
	echo "${R[ops]} operations, $arrived arrived, ${R[lost]} lost"
	[ "${R[ops]}" = "$1" ] || fail "${R[ops]} operations, not $1"
	[ "${R[lost]}" -gt 0 ] && [ "${R[lost]}" -lt $(($1 / 8)) ] || fail "lost: ${R[lost]} of $1"
	[ "$2" != transport=ud ] && [ "$2" != transport=uc ] || [[ $3 != op=send* ]] ||
		[ $((arrived + R[lost])) = "$1" ] || fail "$arrived arrived, ${R[lost]} are lost, of $1"
}

# A ping that is lost is no operation.
pings() {
	lossy "$@" || return
	results c
	echo "${R[ops]} operations, ${R[lost]} lost"
	[ $((R[ops] + R[lost])) = "$1" ] || fail "${R[ops]} operations and ${R[lost]} lost are not $1"
	[ "${R[lost]}" -lt $(($1 / 8)) ] || fail "lost: ${R[lost]} of $1"
}

tests "reliable 250 transport=rc op=send size=4096 depth=8" "reliable 250 transport=rc op=write size=4096 depth=8" \
	"reliable 250 transport=rc op=read size=4096 depth=8" "reliable 250 transport=rc op=fetch_add depth=8" \
	"reliable 150 transport=rc op=send_ping" \
	"reliable 250 transport=rc op=exchange_out size=4096 depth=8" \
	"reliable 250 transport=rc op=exchange_in size=1000 depth=8" \
	"unreliable 1500 transport=uc op=send depth=8" "unreliable 1500 transport=ud op=send depth=8" \
	"unreliable 1500 transport=ud op=send_imm depth=8" "unreliable 1000 transport=uc op=write size=1000 depth=8" \
	"unreliable 1000 transport=uc op=write_imm size=1000 depth=8" \
	"pings 200 transport=ud op=send_ping" "pings 200 transport=uc op=send_ping"
