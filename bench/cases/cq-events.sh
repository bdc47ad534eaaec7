# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# How often the device has to call for each operation, 4 KiB READs at depth 32,
# adaptive polling beside interrupts. Each operation asks for a completion, so that
# the rate of events is the mode's doing.

requires="policies end:policy end:stats"
metric=cq_events unit=/op other_name=interrupt
[ "$CLOCK" = icount ] || goal="rivet <= 0.1"

setup() {
	rivet_server policy=default && policy adaptive default completion=adaptive signal_every=1 busy_usecs=5000 &&
		policy interrupt default completion=interrupt signal_every=1
}

run() { load op=read size=4096 submitters=1 depth=32 policy="$1" "$(amount 3000)"; }

round() {
	local rivet other
	run_rivet() { run adaptive && rivet=$(per_op cq_events); }
	run_other() { run interrupt && other=$(per_op cq_events); }
	in_turn run_rivet run_other && pair "$rivet" "$other"
}
