# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# RDMA WRITE beside perftest, both polling at depth 1; half a round trip.

clocks=threads # on one CPU two that poll only wait for each other
metric=latency unit=us other_name=perftest

setup() { beside_perftest_setup; }

round() {
	local size rivet other
	for size in 64 4096 65536; do
		beside_perftest latency write $size && pair_of $size "$rivet" "$other" || return
	done
}
