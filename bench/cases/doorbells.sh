# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Doorbells for each operation, 4 KiB READs at depth 32, the default policy
# beside the textbook.

requires="policies end:policy end:stats"
metric=doorbells unit=/op other_name=naive
[ "$CLOCK" = icount ] || goal="rivet <= 0.25"

setup() { rivet_server policy=default; }

run() { load op=read size=4096 submitters=1 depth=32 policy="$1" "$(amount 3000)"; }

round() {
	local rivet other
	run_rivet() { run default && rivet=$(per_op doorbells); }
	run_other() { run naive && other=$(per_op doorbells); }
	in_turn run_rivet run_other && pair "$rivet" "$other"
}
