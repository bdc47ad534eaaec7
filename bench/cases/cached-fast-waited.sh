# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# 4 KiB READ into regions that the MR cache keeps, beside FRWR, READ
# and invalidate that are each waited for.

requires="policies end:policy end:buffers knob:memory=fast_waited"
other_name=fast_waited
[ "$CLOCK" != icount ] || goal="ratio <= 0.65"

setup() {
	rivet_server policy=default && policy cached default memory=cached &&
		policy fast_waited default memory=fast_waited
}

describe() {
	[ "$1" != saved ] || goal=record other_name=-
}

run() { load op=read size=4096 submitters=1 buffers=64 policy="$1" "$(amount 3000)"; }

round() {
	local rivet other
	run_rivet() { run cached && rivet=$(figure); }
	run_other() { run fast_waited && other=$(figure); }
	in_turn run_rivet run_other && pair "$rivet" "$other" || return
	[ "$CLOCK" != icount ] || pair_of saved "$(calc "$other - $rivet")"
}
