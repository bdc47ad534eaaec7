# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Instructions of Rivet's own steps for one operation, without the device: a
# module runs each in a loop when it is loaded (bench/cost).

clocks=icount
mtus=9000
requires="file:/rivet/rivet_cost.ko"

round() {
	local step
	costs || return
	for step in post completion mr_lookup {submit,complete}-{copy,fast,cached}; do
		pair_of "$step" "${COST[$step]-}" || return
	done
}
