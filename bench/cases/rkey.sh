# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Obtaining a usable rkey of 4 KiB and giving it back, without an operation in
# between: a hit in the MR cache beside allocating, registering, invalidating
# and freeing a region.

clocks=icount
mtus=9000
requires="file:/rivet/rivet_cost.ko"
other_name=register goal="ratio <= 0.02"

round() {
	costs && pair "${COST[mr_lookup]-}" "${COST[mr_register]-}"
}
