# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# What one operation of 64 bytes costs at depth 1 by interrupt, half a round trip: Rivet, and perftest
# that sleeps on events.

clocks=icount
other_name=perftest

setup() {
	local way
	way=$(waiting interrupt) && rivet_server "$way" && CLIENT=$way
}

round() {
	local rivet other
	run_rivet() { load op=send_ping size=64 "$CLIENT" count=4000 && rivet=$(calc "${R[lat_ns_avg]}"); }
	run_other() { other=$(perftest_run 6 ib_send_lat -e -s 64 -n 4000) && other=$(calc "$other * 1000"); }
	in_turn run_rivet run_other && pair "$rivet" "$other"
}
