# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# What more lanes bring on 4 CPUs with 4 submitters, 4 KiB READs at depth 16:
# each number of lanes beside half of it.

clocks=threads cpus=4
requires="policies end:policy end:submitters"
goal="ratio >= 0.95"

setup() {
	local n
	rivet_server policy=default || return
	for n in 1 2 4; do
		policy "lanes$n" default lanes=$n || return
	done
}

describe() {
	case $1 in
	2) other_name="1 lane" ;;
	4) other_name="2 lanes" ;;
	esac
}

round() {
	local n order="1 2 4"
	local -A rate
	[ $((ROUND % 2)) -eq 0 ] || order="4 2 1"
	for n in $order; do
		load op=read size=4096 submitters=4 depth=16 policy="lanes$n" "$(amount 3000)" || return
		rate[$n]=${R[iops]}
	done
	pair_of 2 "${rate[2]}" "${rate[1]}" && pair_of 4 "${rate[4]}" "${rate[2]}"
}
