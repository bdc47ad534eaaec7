# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# How often an operation waits for a lane's lock, 4 submitters: a lane for each
# CPU beside one lock for all.

requires="policies end:policy end:submitters end:stats"
metric=lock_waits unit=/op other_name=global
[ "$CLOCK" = icount ] || goal="rivet <= 0"

setup() {
	rivet_server policy=default && policy percpu default lock=percpu &&
		policy global default lock=global
}

run() { load op=read size=4096 submitters=4 depth=16 policy="$1" "$(amount 3000)"; }

round() {
	local rivet other
	run_rivet() { run percpu && rivet=$(per_op lock_waits); }
	run_other() { run global && other=$(per_op lock_waits); }
	in_turn run_rivet run_other && pair "$rivet" "$other"
}
