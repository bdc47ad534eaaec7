# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# What storage does for a read I/O: a SEND of 64 B answered by an RDMA WRITE of
# 4 KiB and a SEND of 16 B: the floor for a storage transport.

requires="policies end:policy op:exchange_out"
other_name=naive

setup() { rivet_server policy=default; }

run() { load op=exchange_out size=4096 depth="$1" policy="$2" "$(amount 2000)"; }

round() {
	local depth rivet other
	run_rivet() { run "$depth" default && rivet=$(figure); }
	run_other() { run "$depth" naive && other=$(figure); }
	for depth in 1 32; do
		in_turn run_rivet run_other && pair_of depth-$depth "$rivet" "$other" || return
	done
}
