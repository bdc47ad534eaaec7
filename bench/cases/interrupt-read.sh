# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# What one operation of 4096 bytes costs at depth 1 by interrupt: Rivet, and perftest
# that sleeps on events.

clocks=icount
other_name=perftest

setup() {
	local way
	way=$(waiting interrupt) && rivet_server "$way" && CLIENT=$way
}

round() {
	local rivet other
	run_rivet() { load op=read size=4096 "$CLIENT" count=4000 && rivet=$(calc "${R[lat_ns_avg]}"); }
	run_other() { other=$(perftest_run 6 ib_read_lat -e -s 4096 -n 4000) && other=$(calc "$other * 1000"); }
	in_turn run_rivet run_other && pair "$rivet" "$other"
}
