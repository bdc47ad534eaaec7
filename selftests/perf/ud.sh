#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# A UD message holds the path MTU: 1024 bytes over a device of MTU 1500, 4096
# over one of 9000. More is refused before anything is sent.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"
needs ud network

mtu() {
	ip -n a link set va mtu "$1" && ip -n b link set vb mtu "$1"
}

restore() { mtu 1500; }

# fits MTU SIZE...
fits() {
	local size
	mtu "$1"
	server || return
	for size in "${@:2}"; do
		run_load 30 transport=ud op=send size="$size" depth=4 || fail "size $size"
	done
}

# does_not_fit MTU SIZE MOST
does_not_fit() {
	mtu "$1"
	server && client transport=ud op=send size="$2" || return
	NS=a put c/start 1
	[ "$ERRNO" = EMSGSIZE ] || fail "start: $ERRNO"
	[ ${#LINES[@]} -eq 1 ] || fail "${#LINES[@]} lines in the log"
	[[ "${LINES[0]}" == *"path MTU, $3"* ]] || fail "log: ${LINES[0]}"
	state_is c failed || fail "the state is $V"
	has_error c "path MTU, $3"
	rmdir "$C"/c
	serves
}

tests "fits 1500 1 63 1023 1024" "does_not_fit 1500 1025 1024" \
	"fits 9000 1025 4095 4096" "does_not_fit 9000 4097 4096"
