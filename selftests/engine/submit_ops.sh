#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What submitters do beside READs, and on several connections: each operation with
# each memory mode, verified, and counted alike at both ends; and what becomes of
# such loads that do not end by themselves.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

OPS="write send"
! has imm || OPS+=" write_imm send_imm"

# submit OP COUNT KEY=VALUE...: a load by the policy p. Both ends must say that it was
# done, and done right. S is what the client's stats say.
submit() {
	local op=$1 n=$2 begin=$FAILURES size before
	results s
	before="${R[ops]} ${R[bytes]} ${R[sessions]}"
	client "op=$op" policy=p verify=1 "count=$n" "${@:3}" && start c a && await_done c 60 || return
	get c size
	size=$V
	expect c "ops=$n" "bytes=$((n * size))" errors=0 miscompares=0 lost=0
	stats c
	rmdir "$C"/c
	# shellcheck disable=SC2086 # three numbers
	set -- $before
	wait_for 5 result_is s ops $(($1 + n)) || fail "the server counts ${R[ops]} operations, not $(($1 + n))"
	expect s "bytes=$(($2 + n * size))" "sessions=$(($3 + 1))" sessions_failed=0 errors=0 miscompares=0 lost=0
	[ "${S[bytes]}" = $((n * size)) ] && [ "${S[errors]}" = 0 ] || fail "stats: ${S[bytes]} bytes, ${S[errors]} errors"
	[ "$FAILURES" = "$begin" ] || fail "that was: $op, $n operations"
}

# got N MODE SIZE: how N operations got at their memory. In twelve buffers, or six.
got() {
	local found=12
	[ "$3" -lt 65536 ] || found=6
	case $2:$3 in
	register:* | fast*:* | auto:5001 | auto:65536 | *:"$LONG") stats_are "registrations=$1" "invalidations=$1" copies=0 mr_misses=0 ;;
	copy:* | auto:*) stats_are "copies=$1" registrations=0 invalidations=0 mr_misses=0 ;;
	cached:*) stats_are "registrations=$found" "mr_misses=$found" "mr_hits=$(($1 - found))" invalidations=0 copies=0 ;;
	esac
}

# memory OP MODE: sizes from a byte to 1 MiB.
memory() {
	local many="submitters=3 depth=4" few="submitters=3 depth=2"
	# Of one lane, which misses each buffer once.
	[ "$2" != cached ] || many="submitters=1 depth=4 buffers=12" few="submitters=1 depth=2 buffers=6"
	server && policy p "memory=$2" lanes=2 || return
	# shellcheck disable=SC2086 # words
	for size in 1 777 4096 5001; do
		submit "$1" 90 "size=$size" $many || return
		got 90 "$2" "$size"
	done
	# shellcheck disable=SC2086 # words
	submit "$1" 24 size=65536 $few || return
	got 24 "$2" 65536
	submit "$1" 6 "size=$LONG" submitters=1 depth=1 || return
	[ "$2" = cached ] || got 6 "$2" "$LONG"
}

# every SIGNAL: completions asked for at intervals, by one submitter and by several that
# share a lane; and batches that are cut.
every() {
	local op mode
	server && policy p lanes=1 "signal_every=$1" || return
	for op in $OPS; do
		for mode in fast copy; do
			turn "memory=$mode" batch=32
			submit "$op" 97 size=5001 submitters=1 depth=8 || return
			submit "$op" 97 size=5001 submitters=4 depth=8 || return
			# Elsewhere more may ask for a completion than has to.
			! has rxe || [ "$1" != 256 ] || [ "${S[signalled]}" -le $((97 / 4)) ] || fail "$op $mode: ${S[signalled]} signals"
			turn batch=1
			submit "$op" 33 size=300 submitters=3 depth=3 || return
		done
	done
}

# More of it than there are receives, again and again: flow control.
credit() {
	local op
	server && policy p lanes=1 completion="$1" || return
	for op in $OPS; do
		[ "$op" != write ] || continue
		submit "$op" 3000 size=64 submitters=2 depth=32 || return
		submit "$op" 1 size=20000 submitters=1 || return
		submit "$op" 200 size=20000 submitters=4 depth=1 || return
	done
}

# Without verify the same is counted.
unverified() {
	local op
	server && policy p || return
	for op in $OPS; do
		submit "$op" 500 size=3001 submitters=4 depth=16 verify=0 || return
	done
}

# ---- connections ------------------------------------------------------------

# connections N LANES SUBMITTERS: so many QPs there are, and all work.
connections() {
	local op before
	server && policy p "lanes=$2" memory=fast || return
	for op in read $OPS; do
		submit "$op" 203 size=4097 "connections=$1" "submitters=$3" depth=3 || return
	done
	queue_pairs && before=$QPS
	client op=write policy=p "connections=$1" "submitters=$3" duration_ms=60000 && start c a || return
	queue_pairs
	[ $((QPS - before)) -eq $(($1 * $2 + 1)) ] || fail "$((QPS - before)) QPs, not $(($1 * $2 + 1))"
	[ "$(pgrep -c '^rivet_sub/')" = $(($1 * $3)) ] || fail "$(pgrep -c '^rivet_sub/') submitters"
	wait_for 10 all_busy "$1" || fail "lanes that did something: $BUSY of $1 connections"
}
# all_busy N: each of N connections has a lane that did something.
all_busy() {
	local file key value connection
	local -A seen=()
	for file in /sys/kernel/debug/rivet/perf/c/lane*/stats; do
		while read -r key value; do
			[ "$key" != connection ] || connection=$value
			[ "$key" != completions ] || [ "$value" -lt 10 ] || seen[$connection]=1
		done <"$file"
	done
	BUSY=${#seen[@]}
	[ "$BUSY" -eq "$1" ]
}

# One submitter each: they are not all on one CPU.
spread() {
	server && policy p && client op=write policy=p connections=4 submitters=1 duration_ms=60000 && start c a || return
	for n in 0 1 2 3; do
		wait_for 5 submitter_on "$n" $((n % 2)) || fail "submitter $n is on CPU '$V'"
	done
}

# ---- ends -------------------------------------------------------------------

# load OP MEMORY KEY=VALUE...: at work.
load() {
	server timeout_ms=1500 && policy p "memory=$2" lanes=2 mr_cache_entries=128 || return
	client "op=$1" policy=p size=5001 verify=1 submitters=2 depth=4 buffers=20 timeout_ms=1500 duration_ms=60000 "${@:3}" &&
		start c a || return
	wait_for 10 working || fail "no operation was done"
	BEGIN=$SECONDS
}
working() { results c && [ "${R[ops]}" -gt 50 ]; }
promptly() { [ $((SECONDS - BEGIN)) -le "$1" ] || fail "it took $((SECONDS - BEGIN)) s"; }

client_stops() {
	load "$@" || return
	NS=a put c/stop 1
	[ "$ERRNO" = OK ] || fail "stop: $ERRNO"
	promptly 3
	state_is c "done" || fail "the state is $V: $(<"$C"/c/error)"
	right c
	wait_for 8 result_is s sessions_failed 1 || fail "sessions_failed is ${R[sessions_failed]}"
	right s
	rmdir "$C"/c
	client op=send policy=p verify=1 count=20 submitters=2 && start c a && await_done c && expect c ops=20
}

server_goes() {
	load "$@" || return
	rmdir "$C"/s || fail "the server cannot be removed"
	promptly 3
	await_failed c 8
	has_error c "ended the connection"
	right c
}

# The network carries nothing any more, and nobody is told.
silent() {
	needs network
	load "$@" || return
	tc -n a qdisc add dev va root netem loss 100% && tc -n b qdisc add dev vb root netem loss 100%
	await_failed c 8
	wait_for 8 result_is s sessions_failed 1 || fail "the server's session goes on"
	promptly 8
	get c error
	[ -n "$V" ] || fail "there is no error"
	echo "c: $V"
	right c
	restore
	rmdir "$C"/c
	wait_for 8 served_again || fail "the server does not serve any more"
}
served_again() {
	client op=send policy=p verify=1 count=20 submitters=2 && NS=a put c/start 1 && [ "$ERRNO" = OK ] && await_done c ||
		{ rmdir "$C"/c && false; }
}

server_device() {
	needs links
	load "$@" || return
	rdma link delete "$DEV_B" || fail "the device cannot be deleted"
	await_failed c 8
	promptly 8
	right c
}

# One packet of a hundred is lost, both ways.
lossy() {
	needs network
	tc -n a qdisc add dev va root netem loss 1% && tc -n b qdisc add dev vb root netem loss 1% || return
	server && policy p "memory=$2" lanes=1 || return
	submit "$1" 200 size=5001 submitters=2 depth=4
}

restore() {
	{ tc -n a qdisc del dev va root && tc -n b qdisc del dev vb root; } 2>/dev/null
	link a && link b
}

# By time: the last ones ask for a completion, whoever is last.
by_time() {
	[[ $1 != *_imm ]] || needs imm
	server && policy p "memory=$2" lanes=1 signal_every=256 || return
	client "op=$1" policy=p verify=1 size=5001 duration_ms=600 submitters=3 depth=8 && start c a && await_done c 20 || return
	expect c errors=0 miscompares=0
	n=${R[ops]}
	[ "$n" -ge 3 ] || fail "$n operations"
	wait_for 5 result_is s ops "$n" || fail "the server counts ${R[ops]} operations, the client $n"
}

# ---- what cannot be ---------------------------------------------------------

# refused ERRNO WORDS KEY=VALUE...: WORDS with "+" for blanks.
refused() {
	server && policy p "lanes=${LANES:-1}" && client policy=p "${@:3}" && NS=a put c/start 1
	[ "$ERRNO" = "$1" ] || fail "start: $ERRNO, not $1"
	[ ${#LINES[@]} -eq 1 ] || fail "${#LINES[@]} lines in the log: ${LINES[*]}"
	[[ ${LINES[0]-} == *"${2//+/ }"* ]] || fail "the log says '${LINES[0]-}'"
	rmdir "$C"/c
	submit write 10 submitters=2
}

# A server's depth is that of all submitters of a lane.
depth_limit() {
	server depth=8 && policy p lanes=1 && client op=send policy=p submitters=3 depth=3 && NS=a put c/start 1
	[ "$ERRNO" = ECONNREFUSED ] || fail "start: $ERRNO"
	rmdir "$C"/c
	submit send 50 submitters=2 depth=4
}

list=()
for op in write send; do
	for mode in fast copy; do
		list+=("client_stops $op $mode connections=2" "server_goes $op $mode" "silent $op $mode connections=3")
	done
	list+=("lossy $op fast" "lossy $op copy" "server_device $op fast connections=2" "by_time $op fast" "by_time $op copy")
	list+=("lossy $op register" "lossy $op fast_waited" "lossy $op cached")
done
modes=()
for op in $OPS; do
	for mode in register fast cached copy auto fast_waited; do
		modes+=("memory $op $mode")
	done
done
tests "${list[@]}" "by_time write_imm fast" "by_time send_imm fast" "every 1" "every 0" "every 256" \
	"credit adaptive" "credit interrupt" "credit busy" unverified \
	"connections 2 1 1" "connections 3 2 4" "connections 16 1 2" spread \
	"refused EOPNOTSUPP submitters:+only+for+op op=fetch_add submitters=2" \
	"refused EOPNOTSUPP submitters:+only+for+op op=write_ping submitters=2" \
	"refused EOPNOTSUPP submitters:+only+for+op op=write transport=uc submitters=2" \
	"refused E2BIG depth:+a+lane's+submitters+have+1040 op=write submitters=13 depth=80" \
	"refused E2BIG submitters:+64+for+each+of+17 op=send submitters=64 connections=17" \
	"refused EINVAL more+than+256+MiB op=write size=1048576 submitters=30 depth=10" depth_limit "${modes[@]}"
