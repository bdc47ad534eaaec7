#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The tracepoints tell what the counters count, and nothing when they are off.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

T=/sys/kernel/tracing
EVENTS="arm cm complete cq_event done doorbell kick lock_wait mode mr_evict mr_hit mr_invalidate mr_miss mr_register poll
	post qp submit"

restore() {
	echo 0 >"$T"/events/rivet/enable
	echo >"$T"/trace
}

# traced: N[event] is how many there were since "record"; LANES are the QPs that
# the client made for its lanes, by Rivet's numbers: all but its first.
declare -A N
traced() {
	local event n
	echo 0 >"$T"/events/rivet/enable
	cat "$T"/trace >"$TRACE"
	N=()
	for event in $EVENTS; do N[$event]=0; done
	while read -r n event; do N[$event]=$n; done < <(sed -n 's/^[^#].* rivet_\([a-z_]*\): .*/\1/p' "$TRACE" | sort | uniq -c)
	LANES=$(sed -n 's/^ *rivet-perf-cli-.* rivet_qp: qp=\([0-9]*\) .* made$/\1/p' "$TRACE" | sed 1d | xargs)
	grep -q '^# entries-in-buffer/entries-written: \([0-9]*\)/\1 ' "$TRACE" || fail "events were lost"
}
record() {
	echo >"$T"/trace
	echo 1 >"$T"/events/rivet/enable
}

# of_lanes PATTERN: V is how many events of the lanes' QPs match, where QP stands
# for one of them. count PATTERN: of all.
of_lanes() { count "${1/QP/qp=(${LANES// /|})}"; }
count() { V=$(grep -cE "$1" "$TRACE"); }

# begins EVENT: the QP and the begin of each.
begins() { sed -n "s/^[^#].* $1: \(qp=[0-9]* begin=[0-9]*\) .*/\1/p" "$TRACE" | sort; }

# says WHAT SEEN COUNTED
says() { [ "$2" = "$3" ] || fail "$1: $2 traced, $3 counted"; }

# load KNOB=VALUE... -- KEY=VALUE...
load() {
	local knobs=()
	while [ "$1" != -- ]; do knobs+=("$1") && shift; done
	shift
	server && policy p "${knobs[@]}" || return
	record
	client op=read count=240 policy=p "$@" && start c a && await_done c 60 || return
	stats c
	expect c ops=240
	traced
	[ "$(wc -w <<<"$LANES")" -gt 0 ] || fail "no QP of a lane was made"
	says "done" "${N[done]}" 240
	# Each was submitted before, at the time and on the QP that its end tells.
	V=$(comm -23 <(begins rivet_done) <(begins rivet_submit))
	[ -z "$V" ] || fail "done, but not submitted: $V"
	of_lanes 'rivet_post: QP '
	says posts "$V" "${S[posts]}"
	of_lanes 'rivet_post: QP .* signaled=1'
	says signalled "$V" "${S[signalled]}"
	of_lanes 'rivet_doorbell: QP '
	# The marker behind the last one has a doorbell that is not counted any more.
	[ $((V - S[doorbells])) -ge 0 ] && [ $((V - S[doorbells])) -le "$(wc -w <<<"$LANES")" ] ||
		fail "doorbells: $V traced, ${S[doorbells]} counted"
	of_lanes 'rivet_complete: QP send .* SUCCESS'
	[ "$V" -gt 0 ] && [ "$V" -le "${S[completions]}" ] || fail "completions: $V traced, ${S[completions]} counted"
	says hits "${N[mr_hit]}" "${S[mr_hits]}"
	says misses "${N[mr_miss]}" "${S[mr_misses]}"
	says registrations "${N[mr_register]}" "${S[registrations]}"
	says evictions "${N[mr_evict]}" "${S[evictions]}"
	says invalidations "${N[mr_invalidate]}" "${S[invalidations]}"
	says "lock waits" "${N[lock_wait]}" "${S[lock_waits]}"
	# Each QP that was made is gone.
	local gone
	count 'rivet_qp: .* gone$' && gone=$V && count 'rivet_qp: .* made$'
	says "QPs that are gone" "$gone" "$V"
	[ "${N[cm]}" -gt 0 ] && [ "${N[poll]}" -gt 0 ] || fail "${N[cm]} events of the CM, ${N[poll]} polls"
}

# Events, kicks and arms of the pollers; a session has none.
events() {
	load completion=interrupt lanes=2 memory=copy -- submitters=2 depth=4 size=64 || return
	[ "${N[cq_event]}" -gt 0 ] && [ "${N[kick]}" -ge "${N[cq_event]}" ] && [ "${N[arm]}" -gt 0 ] ||
		fail "${N[cq_event]} CQ events, ${N[kick]} kicks, ${N[arm]} arms"
	# Of a poller's CQ, beside which there is the session's.
	[ "${N[cq_event]}" -le "${S[cq_events]}" ] && [ "${N[arm]}" -le "${S[arms]}" ] ||
		fail "${S[cq_events]} CQ events, ${S[arms]} arms counted"
}

# A thread's mode alternates, and so does softirq's.
modes() {
	load completion=adaptive busy_usecs=100000 lanes=1 memory=copy -- submitters=1 depth=1 size=64 || return
	local line last="" now
	[ "${N[mode]}" -gt 0 ] || fail "no change of mode"
	while read -r line; do
		now=${line##* }
		[ "$now" != "$last" ] || fail "$now after $last"
		last=$now
	done < <(grep 'rivet_mode: cpu=0 thread' "$TRACE")
}

off() {
	server && client op=read submitters=2 count=50 && start c a && await_done c || return
	traced
	local event
	for event in $EVENTS; do [ "${N[$event]}" = 0 ] || fail "$event: ${N[$event]}"; done
}

# All that there are, and no more.
names() {
	local there
	there=$(cd "$T"/events/rivet && printf '%s\n' rivet_*/ | sed 's/^rivet_//; s,/$,,' | sort | xargs)
	[ "$there" = "$(xargs <<<"$EVENTS")" ] || fail "there are: $there"
}

TRACE=$(mktemp)
echo 16384 >"$T"/buffer_size_kb
tests names off "load memory=fast lanes=2 -- submitters=4 depth=4 size=8192" \
	"load memory=register lanes=1 -- submitters=2 depth=4 size=8192" \
	"load memory=fast_waited lanes=1 -- submitters=1 depth=4 size=8192" \
	"load memory=cached lanes=2 -- submitters=2 depth=4 buffers=16 size=8192" \
	"load memory=cached mr_cache_entries=8 lanes=1 -- submitters=1 depth=4 buffers=16 size=8192" \
	"load memory=copy lock=global lanes=2 -- submitters=4 depth=4 size=64" events modes
