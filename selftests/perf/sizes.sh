#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Payloads of 1 byte to 1 MiB, cut into 1 to 32 pieces, many at a time, each
# checked. With verify, payloads start at odd places in memory.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# sizes TRANSPORT OP SIZE...
sizes() {
	local size
	server || return
	for size in "${@:3}"; do
		# With what is around it, that is longer than a region of siw.
		[ "$DEVICE $size" != "siw 1048576" ] || [ "$2" = send ] || size=1048512
		run_load 4 transport="$1" op="$2" size="$size" || fail "size $size"
	done
}

# sges OP
sges() {
	local sges size many
	unset many
	server || return
	# siw has six.
	[ "$DEVICE" != siw ] || [ "$1" = read ] || many="2 6"
	for sges in ${many-2 7 32}; do
		# The last are fewer bytes than pieces.
		for size in 4099 5; do
			run_load 4 op="$1" size="$size" depth=2 sges="$sges" || fail "size $size, sges $sges"
		done
	done
}

# depths OP
depths() {
	local depth
	server || return
	for depth in 3 16 1024; do
		run_load $((depth * 2 + 1)) op="$1" size=64 depth="$depth" || fail "depth $depth"
	done
}

every="1 2 7 8 63 64 65 255 1023 1024 4095 4096 4097 65536 1048576"
tests "sizes rc send $every" "sizes rc write $every" "sizes rc read $every" \
	"sizes rc send_ping 1 4097 1048576" "sizes uc send 1 1023 4097 65536" \
	"sizes uc write 1 1023 4097 65536" "sges send" "sges write" "sges read" \
	"depths send" "depths write" "depths read"
