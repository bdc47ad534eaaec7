#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Atomics add up: with verify, each finds the count of those before it, and in
# the end the server's word is the number of operations.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# adds_up OP DEPTH CONNECTIONS
adds_up() {
	server && run_load 401 op="$1" depth="$2" connections="$3"
	expect s ops=401 bytes=3208 miscompares=0
}

tests "adds_up fetch_add 1 1" "adds_up fetch_add 8 4" \
	"adds_up cmp_swap 1 1" "adds_up cmp_swap 8 4" "adds_up fetch_add 200 2"
