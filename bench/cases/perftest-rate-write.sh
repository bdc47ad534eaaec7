# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# RDMA WRITE beside perftest, both polling at depth 32.

clocks=threads # on one CPU two that poll only wait for each other
metric=rate unit=op/s other_name=perftest

setup() { beside_perftest_setup; }

round() {
	local size rivet other
	for size in 64 4096 65536; do
		beside_perftest rate write $size && pair_of $size "$rivet" "$other" || return
	done
}
