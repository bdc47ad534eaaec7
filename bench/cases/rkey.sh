# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Obtaining a usable rkey of 4 KiB and giving it back, without an operation in
# between: a hit in the MR cache beside allocating and freeing a region.

clocks=icount
requires="policies end:policy op:rkey"
other_name=register goal="ratio <= 0.02"

setup() {
	rivet_server policy=default && policy cached default memory=cached &&
		policy register default memory=register
}

round() {
	local rivet other
	run_rivet() { load op=rkey size=4096 policy=cached count=100000 && rivet=$(figure); }
	run_other() { load op=rkey size=4096 policy=register count=10000 && other=$(figure); }
	in_turn run_rivet run_other && pair "$rivet" "$other"
}
