#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The module that measures Rivet's own steps for "make bench" measures each.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

steps() {
	local step found
	dmesg --clear
	nsenter --net=/run/netns/a insmod "$RIVET_AT/rivet_cost.ko" || fail "it cannot be loaded"
	rmmod rivet_cost || fail "it cannot be unloaded"
	found=$(dmesg --notime | sed -n 's/^rivet_cost: //p')
	for step in post completion mr_lookup mr_register {submit,complete}-{copy,fast,cached}; do
		[[ $'\n'$found$'\n' == *$'\n'"$step "[1-9]* ]] || fail "no figure for $step in: $found"
	done
}

tests steps
