#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What "result" and "histogram" say fits together.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

OPS=600

# histogram NAME: SUM is the sum of the counts, LOW and HIGH are its ends.
histogram() {
	local from to count before=0 lines=0
	SUM=0 LOW=-1 HIGH=0
	while read -r from to count; do
		[ "$from" -ge "$before" ] && [ "$to" -gt "$from" ] || fail "histogram: $from $to"
		[ "$count" -gt 0 ] || fail "histogram: an empty line"
		[ "$LOW" -ge 0 ] || LOW=$from
		before=$to HIGH=$to
		SUM=$((SUM + count)) lines=$((lines + 1))
	done <"$C/$1/histogram"
	[ "$(wc -c <"$C/$1/histogram")" -le 4096 ] || fail "the histogram is too long"
}

in_order() {
	local before=0 key
	for key; do
		[ "${R[$key]}" -ge "$before" ] || fail "$key is ${R[$key]}, after $before"
		before=${R[$key]}
	done
}

# consistent OP DEPTH CONNECTIONS
consistent() {
	local rate
	server && run_and_keep "$OPS" op="$1" depth="$2" connections="$3" || return
	results c
	[ "${R[ops]}" = "$OPS" ] && [ "${R[bytes]}" = $((OPS * 64)) ] || fail "ops ${R[ops]}, bytes ${R[bytes]}"
	in_order lat_ns_min lat_ns_p50 lat_ns_p99 lat_ns_p99_9 lat_ns_max
	in_order lat_ns_min lat_ns_avg lat_ns_max
	[ "${R[lat_ns_min]}" -gt 0 ] || fail "it took no time"
	[ "${R[lat_ns_max]}" -le "${R[elapsed_ns]}" ] || fail "an operation took longer than all"
	rate=$((OPS * 1000000000 / R[elapsed_ns]))
	[ $((R[iops] - rate)) -ge -1 ] && [ $((R[iops] - rate)) -le 1 ] || fail "iops ${R[iops]}, not $rate"
	histogram c
	[ "$SUM" = "$OPS" ] || fail "the histogram has $SUM operations"
	[ "$LOW" -le "${R[lat_ns_min]}" ] && [ "$HIGH" -gt "${R[lat_ns_max]}" ] ||
		fail "the histogram is from $LOW to $HIGH; ${R[lat_ns_min]} to ${R[lat_ns_max]}"
	# Latencies are the client's; the server counts.
	expect s ops="$OPS" bytes=$((OPS * 64)) lat_ns_max=0
	histogram s
	[ "$SUM" = 0 ] || fail "the server's histogram has $SUM operations"
}
run_and_keep() {
	client count="$1" "${@:2}" && start c a && await_done c
}

while_running() {
	local i last=0
	server && client duration_ms=1500 depth=8 && start c a || return
	for ((i = 0; i < 12; i++)); do
		results c
		[ "${R[ops]}" -ge "$last" ] || fail "ops went from $last to ${R[ops]}"
		last=${R[ops]}
		in_order lat_ns_p50 lat_ns_p99 lat_ns_max
		histogram c
		[ "$SUM" -ge "$last" ] || fail "the histogram has $SUM of $last operations"
	done
	await_done c
	results c
	[ "$last" -gt 0 ] && [ "${R[ops]}" -ge "$last" ] || fail "ops went from $last to ${R[ops]}"
}

not_started() {
	local key
	client && results c || return
	for key in "${!R[@]}"; do
		[[ ${R[$key]} =~ ^[0.]+$ ]] || fail "$key is ${R[$key]}"
	done
	[ ${#R[@]} -eq 18 ] || fail "${#R[@]} keys"
	state_is c idle || fail "the state is $V"
	[ ! -s "$C"/c/histogram ] || histogram c
	[ "$(<"$C"/c/error)" = "" ] || fail "there is an error"
}

tests not_started "consistent send 1 1" "consistent write 8 2" "consistent send_ping 1 1" while_running
