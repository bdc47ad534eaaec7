# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# 4 KiB READs as a storage service does them, 4 submitters at depth 16 that go
# round 64 buffers: the default policy beside the textbook.
#
# Both are also shown beside the device's floor: as many READs under way on as many
# QPs, into memory that is registered once and stays so, by a thread that waits for all
# of them. What is above that, "own", is what a policy can change.

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
	local rivet other floor lanes
	lanes=$(nproc)
	load op=read size=4096 connections="$lanes" depth=$((64 / lanes)) policy=default "$(amount 3000)" &&
		floor=$(figure) || return
	run_rivet() { run default && rivet=$(figure); }
	run_other() { run naive && other=$(figure); }
	in_turn run_rivet run_other && pair "$rivet" "$other" && pair_of floor "$rivet" "$floor" || return
	[ "$CLOCK" != icount ] ||
		pair_of own "$(calc "$rivet - $floor")" "$(calc "$other - $floor")"
}
