# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Instructions of Rivet's own code for one operation, without the device: the
# module runs each step in a loop when this file is read.

clocks=icount
mtus=9000
requires="file:/sys/kernel/debug/rivet/cost"

declare -A COST

round() {
	local step
	read_into COST /sys/kernel/debug/rivet/cost || return
	for step in post completion mr_lookup; do
		pair_of $step "${COST[$step]-}" || return
	done
}
