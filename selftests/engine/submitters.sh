#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Loads by submitters, verified: each memory mode with each lock, some numbers of
# lanes, and payloads from a byte to 1 MiB. And that each knob changes what it
# says, by what the engine counts.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# submit COUNT KEY=VALUE...: a load by the policy p, and what is true of each. N is
# COUNT; R and S are what the client says at its end.
submit() {
	local begin=$FAILURES
	N=$1
	client op=read policy=p verify=1 "count=$N" "${@:2}" && start c a && await_done c 60 || return
	expect c "ops=$N" errors=0 miscompares=0 lost=0
	get c size
	stats c
	rmdir "$C"/c
	# Nothing is received on these QPs.
	stats_are bytes=$((N * V)) errors=0 cq_failures=0 recv_doorbells=0
	at_least completions 1 posts "$N" signalled 1 doorbells 1
	at_most doorbells "${S[posts]}" signalled "${S[posts]}" empty_polls "${S[polls]}" \
		remote_kicks "${S[kicks]}"
	[ "$FAILURES" = "$begin" ] || fail "that was: $*"
}

# at_least and at_most KEY VALUE...
at_least() {
	while [ $# -gt 0 ]; do
		[ "${S[$1]}" -ge "$2" ] || fail "$1 is ${S[$1]}, not $2 or more"
		shift 2
	done
}
at_most() {
	while [ $# -gt 0 ]; do
		[ "${S[$1]}" -le "$2" ] || fail "$1 is ${S[$1]}, not $2 or less"
		shift 2
	done
}

# ---- memory -----------------------------------------------------------------

# How each operation got at its memory, N of them with BUFFERS buffers in all.
registered() { stats_are "registrations=$N" "invalidations=$N" copies=0 mr_hits=0 mr_misses=0 evictions=0; }
copied() { stats_are "copies=$N" registrations=0 invalidations=0 mr_hits=0 mr_misses=0 evictions=0; }
found() {
	stats_are "registrations=$1" "mr_misses=$1" "mr_hits=$((N - $1))" invalidations=0 evictions=0 copies=0
}

# memory MODE LOCK
memory() {
	local load size
	server && policy p "memory=$1" "lock=$2" || return
	for load in "0 1" "0 4096" "0 5000" "0 65536" "0 $LONG" "1 5000" "1 65536" "3 1" "3 5000"; do
		size=${load#* }
		turn "lanes=${load% *}"
		# Less of what takes long.
		case $size in
		65536) submit 24 "size=$size" submitters=3 depth=2 ;;
		"$LONG") submit 6 "size=$size" submitters=3 depth=1 ;;
		*) submit 90 "size=$size" submitters=3 depth=4 ;;
		esac || return
		case $1:$size in
		copy:"$LONG" | auto:5000 | auto:65536 | auto:"$LONG" | register:* | fast*:*) registered ;;
		copy:* | auto:*) copied ;;
		cached:65536) found 6 ;;
		cached:"$LONG") found 3 ;;
		cached:*) found 12 ;;
		esac
	done
}

copy_threshold() {
	server && policy p memory=auto copy_threshold=0 || return
	submit 20 size=1 submitters=2 && registered
	turn copy_threshold=4999
	submit 20 size=5000 submitters=2 && registered
	turn copy_threshold=5000
	submit 20 size=5000 submitters=2 && copied
	turn copy_threshold=65536
	submit 20 size=65536 submitters=2 && copied
}

# Buffers in turn: those of the cache are found again, whoever of the lane used them.
buffers() {
	server && policy p memory=cached lanes=1 || return
	submit 100 size=5000 submitters=2 depth=3 buffers=6 && found 6
	submit 100 size=5000 submitters=2 depth=3 buffers=17 && found 17
	submit 100 size=5000 submitters=2 depth=3 buffers=100 && found 100
	turn lanes=2
	submit 100 size=5000 submitters=2 depth=3 buffers=17 && found 34
}

# ---- eviction ---------------------------------------------------------------

# With the least entries there may be, and more buffers than those. What is over
# at the end has all been seen.
eviction() {
	server && policy p memory=cached lanes=1 mr_cache_entries=12 || return
	submit 200 "size=$1" submitters=2 depth=3 buffers=40 || return
	stats_are "registrations=$N" "mr_misses=$N" mr_hits=0 "invalidations=${S[evictions]}"
	at_least evictions $((N - 12))
	# What the free ones are kept for is not there to be found.
	submit 200 "size=$1" submitters=2 depth=3 buffers=8 || return
	stats_are "registrations=${S[mr_misses]}" "mr_hits=$((N - S[mr_misses]))" "invalidations=${S[evictions]}"
	at_least evictions 1
	turn mr_cache_entries=24 lanes=2
	submit 200 "size=$1" submitters=4 depth=3 buffers=60 || return
	stats_are "registrations=${S[mr_misses]}" "mr_hits=$((N - S[mr_misses]))" "invalidations=${S[evictions]}"
	at_least evictions $((N - 24))
}

# too_few NEEDED KEY=VALUE...: one less than what this load needs is refused.
too_few() {
	server && policy p memory=cached "mr_cache_entries=$(($1 - 1))" || return
	turn "$2"
	client op=read policy=p size=5000 "${@:3}" && NS=a put c/start 1
	[ "$ERRNO" = ENOSPC ] && [ ${#LINES[@]} -eq 1 ] || fail "start: $ERRNO, ${#LINES[@]} lines in the log"
	has_error c "mr_cache_entries: this load needs $1, "
	turn mr_cache_entries=0
	NS=a put c/start 1
	[ "$ERRNO" = ENOSPC ] || fail "start: $ERRNO"
	has_error c "mr_cache_entries: this load needs $1, "
	rmdir "$C"/c
	turn "mr_cache_entries=$1"
	submit 40 size=5000 "${@:3}"
}

# ---- queueing ---------------------------------------------------------------

# Each doorbell takes so many at most.
batch() {
	server && policy p lanes=1 memory=copy batch=1 || return
	submit 96 submitters=2 depth=16
	at_least doorbells "${S[posts]}"
	turn batch=4
	submit 96 submitters=2 depth=16
	at_least doorbells $((S[posts] / 4))
	turn batch=128
	# Whoever finds an empty queue fills it with one.
	submit 96 submitters=1 depth=32
	at_most doorbells $((S[posts] - 31))
	# A chain is not cut.
	turn batch=1 memory=fast
	submit 96 size=5000 submitters=2 depth=16
	stats_are doorbells=$((S[posts] / 3))
	turn memory=register
	submit 96 size=5000 submitters=2 depth=16
	stats_are "doorbells=${S[posts]}"
}

# So many of the operations ask for a completion; and the last of each submitter.
signal_every() {
	# Elsewhere more may ask for a completion than has to.
	needs rxe
	local every
	server && policy p lanes=1 memory="$1" || return
	for every in 1 4 256; do
		turn "signal_every=$every"
		submit 96 size=5000 submitters=2 depth=8
		[ "$every" -le 8 ] || every=8
		at_least signalled $((N / every))
		at_most signalled $((N / every + 3))
	done
	# By the depth: one of four.
	turn signal_every=0
	submit 96 size=5000 submitters=2 depth=8
	at_least signalled 24
	at_most signalled 27
}

# ---- completions ------------------------------------------------------------

completion() {
	server && policy p completion=interrupt || return
	submit 200 submitters=2
	# One may be found just behind another.
	at_least cq_events 100 arms 100
	stats_are mode_changes=0
	# The budget is beyond what this takes.
	turn completion=busy busy_usecs=100000
	submit 200 submitters=2
	at_least empty_polls 1
	at_most cq_events 20 arms 20
	turn completion=adaptive
	submit 200 submitters=2
	at_least mode_changes 1
	at_most cq_events 100
	# Held for so long, unless more would come meanwhile.
	turn completion=coalesce coalesce_usecs=10000 coalesce_count=1024
	submit 30 submitters=1
	[ "${R[lat_ns_p50]}" -ge 2000000 ] || fail "half of all took less than ${R[lat_ns_p50]} ns"
	at_most cq_events 20
}

poll_budget() {
	server && policy p poll_budget=1 signal_every=1 memory=copy || return
	submit 200 submitters=2 depth=16
	at_least completions "$N"
	at_least polls $((S[completions] + S[empty_polls]))
}

# ---- lanes and CPUs ---------------------------------------------------------

# lanes LANES CPUS WANTED: so many QPs there are, beside that of control.
lanes() {
	local before
	server && policy p "lanes=$1" "cpus=$2" || return
	queue_pairs && before=$QPS
	client op=read policy=p submitters=4 duration_ms=60000 && start c a || return
	queue_pairs
	[ $((QPS - before)) -eq $(($3 + 1)) ] || fail "$((QPS - before)) QPs, not $(($3 + 1))"
}

# on_cpus CPUS CPU...: the first submitter is on the first of those, and so on.
on_cpus() {
	local n=0 cpu
	server && policy p "cpus=$1" && client op=read policy=p submitters=$(($# - 1)) duration_ms=60000 && start c a || return
	for cpu in "${@:2}"; do
		wait_for 5 submitter_on "$n" "$cpu" || fail "submitter $n is on CPU '$V', not $cpu"
		n=$((n + 1))
	done
}

# more SUBMITTERS KEY=VALUE...: the numbers at their ends.
edges() {
	server && policy p || return
	submit 1 submitters=64
	submit 64 submitters=64
	submit 200 submitters=64 depth=3
	submit 600 submitters=1 depth=256
	turn lanes=64 memory=cached
	submit 130 submitters=64 size=5000
	turn lanes=8 numa=0
	submit 40 submitters=2 size=5000
}

by_time() {
	server && policy p "memory=$1" signal_every="$2" || return
	client op=read policy=p verify=1 size=5000 duration_ms=700 submitters=3 depth=8 && start c a && await_done c 20 || return
	expect c errors=0 miscompares=0
	[ "${R[ops]}" -ge 3 ] || fail "${R[ops]} operations"
	[ "${R[elapsed_ns]}" -ge 300000000 ] || fail "it took ${R[elapsed_ns]} ns"
}

list=()
for mode in register fast cached copy auto fast_waited; do
	list+=("memory $mode percpu" "memory $mode global")
done
tests "${list[@]}" copy_threshold buffers "eviction 4096" "eviction 65536" "too_few 12 lanes=1 submitters=2 depth=3" \
	"too_few 12 lanes=2 submitters=2 depth=3" "too_few 12 lanes=3 submitters=4 depth=1" batch \
	"signal_every copy" "signal_every fast" "signal_every cached" completion poll_budget \
	"lanes 0 all 2" "lanes 0 1 1" "lanes 1 all 1" "lanes 5 all 5" "on_cpus all 0 1 0 1" "on_cpus 1 1 1 1" "on_cpus 0 0" \
	edges "by_time register 0" "by_time copy 256" "by_time fast 256" "by_time cached 256"
