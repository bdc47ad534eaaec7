# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# From the textbook to the default policy, with one knob changed at each step (and
# those that have no meaning without it): 4 KiB READs, 4 submitters at depth 16 that go
# round 64 buffers. With "memory" auto nothing is copied before "copy" sets the
# threshold.

requires="policies end:policy end:submitters end:buffers"
other_name=naive

# Step, and the knobs that become as they are in the default policy.
STEPS=(
	"naive"
	"lock lock"
	"lanes lanes"
	"completion completion coalesce_usecs coalesce_count busy_usecs poll_budget"
	"memory memory"
	"copy copy_threshold mr_cache_entries"
	"batch batch"
	"signal signal_every"
)

setup() {
	local step name knob knobs before=naive
	rivet_server policy=default || return
	for step in "${STEPS[@]:1}"; do
		read -r name knobs <<<"$step"
		policy "$name" "$before" || return
		for knob in $knobs; do
			knob default "$knob" >"$POLICIES/$name/$knob" || return
		done
		before=$name
	done
}

round() {
	local i step name last=$((${#STEPS[@]} - 1))
	local -A at
	for i in $(seq 0 $last); do
		[ $((ROUND % 2)) -eq 0 ] || i=$((last - i))
		name=${STEPS[i]%% *}
		load op=read size=4096 submitters=4 depth=16 buffers=64 policy="$name" "$(amount 3000)" || return
		at[$name]=$(figure)
	done
	for step in "${STEPS[@]}"; do
		name=${step%% *}
		pair_of "$name" "${at[$name]}" "${at[naive]}" || return
	done
}
