# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# SEND of 64 B answered by SEND, half a round trip: the latency policy beside
# perftest, which polls.

clocks=threads
requires="policies end:policy"
metric=latency unit=us other_name=perftest goal="ratio <= 0.8"

setup() { rivet_server policy=latency && RIVET=(policy=latency); }

round() {
	local rivet other
	beside_perftest latency send 64 && pair "$rivet" "$other"
}
