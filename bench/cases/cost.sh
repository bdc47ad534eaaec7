# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Where the instructions of an operation go, 4 submitters at depth 16 and 64
# buffers: policies that differ in one knob are run, and a part costs what they
# differ by. What no knob takes away is the rest.

clocks=icount
requires="policies end:policy end:submitters end:buffers"

# Part of the cost, and the knobs without which it is not there.
PARTS=(
	"registration mr_cache_entries=1024 memory=cached"
	"locking lock=percpu"
	"completion completion=adaptive"
	"completion signal_every=16"
)

setup() {
	local base name part i
	rivet_server policy=default || return
	for base in naive default; do
		name=$base i=0
		for part in "${PARTS[@]}"; do
			# shellcheck disable=SC2086 # several knobs
			policy "$base$i" "$name" ${part#* } || return
			name=$base$i i=$((i + 1))
		done
	done
}

cost() { # OP POLICY: sets COST
	load op="$1" size=4096 submitters=4 depth=16 buffers=64 policy="$2" count=2000 && COST=$(figure)
}

# As round, but for one operation and one policy.
parts_of() { # OP BASE
	local before part i=0
	local -A parts
	cost "$1" "$2" || return
	for part in "${PARTS[@]}"; do
		before=$COST
		cost "$1" "$2$i" || return
		parts[${part%% *}]=$(calc "${parts[${part%% *}]:-0} + $before - $COST")
		i=$((i + 1))
	done
	for part in registration locking completion; do
		pair_of "$1-$2-$part" "${parts[$part]}" || return
	done
	pair_of "$1-$2-rest" "$COST"
}

round() {
	local base
	for base in naive default; do
		parts_of read $base || return
	done
}
