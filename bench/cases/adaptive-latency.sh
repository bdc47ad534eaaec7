# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# The median latency of 4 KiB READs at depth 1, adaptive beside busy polling. An
# operation takes some hundred microseconds on an emulated machine, so the spin
# budget is larger than what a real one needs.

requires="policies end:policy"
metric=latency unit=us other_name=busy
[ "$CLOCK" = icount ] || goal="ratio <= 1.1"

setup() {
	rivet_server policy=default && policy adaptive default completion=adaptive busy_usecs=5000 &&
		policy busy default completion=busy busy_usecs=5000
}

run() { load op=read size=4096 submitters=1 policy="$1" "$(amount 2000)"; }

round() {
	local rivet other
	run_rivet() { run adaptive && rivet=$(calc "${R[lat_ns_p50]} / 1000"); }
	run_other() { run busy && other=$(calc "${R[lat_ns_p50]} / 1000"); }
	in_turn run_rivet run_other && pair "$rivet" "$other"
}
