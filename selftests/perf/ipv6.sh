#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The same over IPv6.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# over TRANSPORT OP
over() {
	[ -n "$SERVER6" ] || skip "$DEVICE has no IPv6 address"
	server address="$SERVER6" && run_load 60 address="$SERVER6" transport="$1" op="$2" size=500
	expect s ops=60 sessions_failed=0
}

# A link-local address means something on one interface only, which is named.
link_local() {
	needs network
	local address
	address=$(ip -n b -6 -o addr show dev vb scope link | awk '{ sub("/.*", "", $4); print $4 }')
	make s role=server && make c role=client count=20 verify=1 || return
	NS=b put s/address "$address%vb"
	[ "$ERRNO" = OK ] || fail "s/address: $ERRNO $address"
	NS=a put c/address "$address%va"
	[ "$ERRNO" = OK ] || fail "c/address: $ERRNO $address"
	start s b && start c a && await_done c && expect c ops=20 errors=0 miscompares=0
}

tests "over rc write" "over uc send" "over ud send" "over rc send_ping" link_local
