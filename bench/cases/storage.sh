# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# 4 KiB READs as a storage service does them, 4 submitters at depth 16 that go
# round 64 buffers: the default policy beside the textbook.
#
# Both are also shown beside the device's floor: READs into memory that is
# registered once and stays so, at depth 32. What is above that, "own", is what
# a policy can change.

requires="policies end:policy end:submitters end:buffers"
other_name=naive
case $CLOCK in
threads) goal="ratio >= 4.0" ;;
icount) goal="ratio <= 0.45" ;;
esac

describe() {
	[ "$1" != floor ] || goal=record other_name=floor
}

setup() { rivet_server policy=default; }

run() { load op=read size=4096 submitters=4 depth=16 buffers=64 policy="$1" "$(amount 3000)"; }

round() {
	local rivet other floor
	load op=read size=4096 depth=32 policy=default "$(amount 3000)" && floor=$(figure) || return
	run_rivet() { run default && rivet=$(figure); }
	run_other() { run naive && other=$(figure); }
	in_turn run_rivet run_other && pair "$rivet" "$other" && pair_of floor "$rivet" "$floor" || return
	[ "$CLOCK" != icount ] ||
		pair_of own "$(calc "$rivet - $floor")" "$(calc "$other - $floor")"
}
