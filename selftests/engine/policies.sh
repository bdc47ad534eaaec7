#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Policies: the presets, what can be written to each knob, who keeps a policy
# from being removed, and that the knobs do what they say.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"
# shellcheck source=selftests/values.sh
. "${0%/*}/../values.sh"

E=/policies/p
subject() { policy p; }

# ---- what there is ----------------------------------------------------------

# shows NAME KNOB=VALUE...
shows() {
	local pair
	for pair in "${@:2}"; do
		get "/policies/$1" "${pair%%=*}"
		[ "$V" = "${pair#*=}" ] || fail "$1: ${pair%%=*} is '$V', not '${pair#*=}'"
	done
}

DEFAULT="lanes=0 cpus=all numa=auto lock=percpu completion=adaptive coalesce_usecs=50 coalesce_count=32
	busy_usecs=100 poll_budget=64 memory=auto copy_threshold=4096 mr_cache_entries=1024 batch=32 signal_every=0 users=0"

# shellcheck disable=SC2086 # a list
presets() {
	local preset files
	shows default $DEFAULT
	shows naive lanes=1 cpus=all numa=auto lock=global completion=interrupt memory=register copy_threshold=0 \
		mr_cache_entries=0 batch=1 signal_every=1 users=0
	shows latency lanes=0 lock=percpu completion=busy poll_budget=16 memory=auto copy_threshold=8192 batch=4 \
		signal_every=0 users=0
	shows throughput lanes=0 lock=percpu completion=adaptive coalesce_usecs=200 coalesce_count=128 poll_budget=256 \
		memory=auto batch=128 signal_every=0 users=0
	for preset in naive default latency throughput; do
		rmdir "$P/$preset" 2>/dev/null && fail "$preset was removed"
		mkdir "$P/$preset" 2>/dev/null && fail "$preset was made twice"
		mkdir "$P/$preset/below" 2>/dev/null && fail "a directory below $preset"
		files=("$P/$preset"/*)
		[ ${#files[@]} -eq 15 ] || fail "$preset has other files: ${files[*]##*/}"
	done
	return 0
}

# A new one is like "default" is after load, whatever became of that since.
# shellcheck disable=SC2086 # a list
fresh() {
	echo 5 >"$P"/default/batch
	policy p
	shows p $DEFAULT
	shows default batch=5
	echo 32 >"$P"/default/batch
	rmdir "$P"/p || fail "it cannot be removed"
}

names() {
	local name
	for name in p 0 a-b_c.d -rf "${LONG:0:63}"; do
		mkdir -- "$P/$name" && rmdir -- "$P/$name" || fail "${name:0:20}: no"
	done
	for name in "${LONG:0:64}" 'a b' a,b $'a\nb' $'\xff' ü '%s%n' "'"; do
		log_clear
		mkdir -- "$P/$name" 2>/dev/null && fail "${name@Q} was made"
		[ "$(log_count "allowed: ")" -eq 1 ] || fail "${name@Q}: $(log_count .) lines in the log"
	done
}

# ---- values -----------------------------------------------------------------

cpus() {
	subject && nonsense cpus || return
	bad cpus EINVAL , 0, ,0 0,,1 - 0- 1-0 0-1-2 0-1:2 "0, 1" ALL all,0 0x1
	bad cpus ERANGE 1024 0-1024 18446744073709551616 "$DIGITS"
	bad cpus ENODEV 1023 0-1023 0,512
	good cpus 0 all 0-1 1 0
	put "$E"/cpus 1,0,1,0-1
	shows p cpus=0-1
	# One that is there, but not online.
	echo 0 >/sys/devices/system/cpu/cpu1/online && bad cpus ENODEV 1 0-1
	echo 1 >/sys/devices/system/cpu/cpu1/online
	good cpus 0-1
}

numa() {
	subject && nonsense numa || return
	bad numa EINVAL Auto auto,0 0-1
	bad numa ERANGE 1024 18446744073709551616 "$DIGITS"
	bad numa ENODEV 1023 7
	good numa 0 auto
}

users_is_read_only() {
	subject && put "$E"/users 1
	[ "$ERRNO" = EACCES ] || fail "users: $ERRNO"
}

# ---- in use -----------------------------------------------------------------

users_are() {
	get /policies/p users
	[ "$V" = "$1" ] || fail "$2: users is $V, not $1"
	if [ "$1" -eq 0 ]; then
		rmdir "$P"/p && policy p || fail "$2: it cannot be removed"
	else
		rmdir "$P"/p 2>/dev/null && fail "$2: it was removed"
		shows p users="$1"
	fi
}

# Ends that run by it keep it; those that do not run any more do not, though they are there.
in_use() {
	policy p && make s role=server address="$SERVER" policy=p && users_are 0 "a server that was not started" || return
	start s b && users_are 1 "a server"
	client policy=p duration_ms=60000 && start c a && users_are 2 "both ends"
	# Not so fast: an end that runs is told "busy" and holds it once all the same.
	NS=a put c/start 1
	[ "$ERRNO" = EBUSY ] || fail "start: $ERRNO"
	users_are 2 "started twice"
	put c/stop 1
	users_are 1 "the client was stopped"
	start c a && users_are 2 "the client runs again"
	rmdir "$C"/c && users_are 1 "the client was removed"
	client policy=p count=10 && start c a && await_done c && users_are 1 "the client is done"
	rmdir "$C"/c
	put s/stop 1
	users_are 0 "the server was stopped"
	start s b && users_are 1 "the server runs again"
	rmdir "$C"/s && users_are 0 "the server was removed"
}

failed_ends() {
	needs namespaces
	policy p && client policy=p timeout_ms=300 && NS=a put c/start 1
	[ "$ERRNO" = ECONNREFUSED ] || fail "start: $ERRNO"
	users_are 0 "nobody listens"
	echo 10.77.0.99 >"$C"/c/address && NS=a put c/start 1
	[ "$ERRNO" = ETIMEDOUT ] || fail "start: $ERRNO"
	users_are 0 "nobody there"
	make s role=server address=10.77.0.1 policy=p && NS=b put s/start 1
	[ "$ERRNO" = EADDRNOTAVAIL ] || fail "start: $ERRNO"
	users_are 0 "not our address"
	echo 5 >"$C"/s/count && put s/start 1
	[ "$ERRNO" = EINVAL ] || fail "start: $ERRNO"
	users_are 0 "not for servers"
	server s2 && client c2 policy=p duration_ms=60000 timeout_ms=2000 && start c2 a && users_are 1 "a client"
	rmdir "$C"/s2 && await_failed c2 5 && users_are 0 "its server went"
}

# Every knob can be changed while it is in use, and the end goes on.
changed_in_use() {
	local pair ops
	policy p && server policy=p && client policy=p duration_ms=60000 depth=16 && start c a || return
	for pair in lanes=3 cpus=0 numa=0 lock=global coalesce_usecs=7 coalesce_count=7 busy_usecs=7 poll_budget=7 \
		memory=copy copy_threshold=7 mr_cache_entries=7 batch=7 signal_every=7 completion=interrupt \
		completion=coalesce completion=busy completion=adaptive; do
		put "$E/${pair%=*}" "${pair#*=}"
		[ "$ERRNO" = OK ] || fail "$pair: $ERRNO"
		shows p "$pair"
		results c && ops=${R[ops]}
		wait_for 3 more_ops "$ops" || fail "$pair: the traffic ended: $(<"$C"/c/error)"
	done
	state_is c running || fail "the client is $V"
	client c2 count=50 verify=1 policy=p depth=16 && start c2 a && await_done c2 && expect c2 ops=50 miscompares=0
}
more_ops() { results c && [ "${R[ops]}" -gt "$1" ]; }

# ---- races ------------------------------------------------------------------

# Made, removed and taken into use at the same time: each start finds it or does
# not, and nothing is left.
races() {
	local n started=0 missing=0 pids
	server || return
	for end in c d; do client "$end" count=1; done
	policy p && echo p >"$C"/c/policy && echo p >"$C"/d/policy && rmdir "$P"/p
	for n in 1 2; do
		while mkdir "$P"/p 2>/dev/null || rmdir "$P"/p 2>/dev/null || :; do :; done &
		pids+=" $!"
	done
	for n in {1..20}; do
		for end in c d; do
			NS=a put "$end"/start 1
			case $ERRNO in
			OK) started=$((started + 1)) && await_done "$end" ;;
			ENOENT) missing=$((missing + 1)) ;;
			*) fail "start: $ERRNO" ;;
			esac
		done
	done
	# While it is in use, none of the two gets it.
	echo 60000 >"$C"/c/duration_ms
	for n in {1..200}; do
		NS=a put c/start 1
		[ "$ERRNO" != OK ] || break
	done
	[ "$ERRNO" = OK ] || fail "it was never there: $ERRNO"
	for n in {1..20}; do
		[ -d "$P"/p ] || fail "it went while it was in use"
		get /policies/p users
		[ "$V" = 1 ] || fail "users is '$V'"
	done
	# shellcheck disable=SC2086 # a list
	{ kill -KILL $pids && wait; } 2>/dev/null
	[ -d "$P"/p ] && rmdir "$P"/p 2>/dev/null && fail "it was removed"
	put c/stop 1
	rmdir "$P"/p || fail "it cannot be removed"
	echo "started $started, missing $missing"
	[ "$started" -gt 0 ] && [ "$missing" -gt 0 ] || fail "no race: started $started, missing $missing"
}

# Many ends take one and the same into use and let it go.
many_users() {
	local n pids=""
	server && policy p || return
	for n in {1..8}; do client "c$n" policy=p count=20; done
	for n in {1..8}; do
		for _ in 1 2 3 4; do
			attr_write -n a "$C/c$n/start" 1 >/dev/null
			wait_for 20 is_over "c$n"
		done &
		pids+=" $!"
	done
	# shellcheck disable=SC2086 # a list
	wait $pids
	for n in {1..8}; do await_done "c$n"; done
	users_are 0 "all are done"
}

# ---- the module -------------------------------------------------------------

unload_is_busy() {
	policy p
	rmmod rivet 2>/dev/null && fail "it was unloaded with a policy that somebody made"
	shows p users=0
	rmdir "$P"/p
}

# The presets do not keep it, nor does who has one of their files open.
unload_with_open_files() {
	local fd dir line
	cd "$P"/latency || return
	exec {fd}<"batch" {dir}<.
	rivet_unload || fail "it cannot be unloaded"
	read -r line 2>/dev/null <&"$fd" && fail "a file that is gone says '$line'"
	exec {fd}<&- {dir}<&-
	cd / || return
	rivet_load || fail "it cannot be loaded again"
	presets
}

# ---- what the knobs do ------------------------------------------------------

# By batch and signal_every nothing is lost, and no queue is overrun.
queueing() {
	local batch signal_every pair depth
	policy p && policy q && server policy=q || return
	for pair in "1 1" "1 256" "3 7" "128 0" "32 2" "128 256"; do
		batch=${pair% *} signal_every=${pair#* }
		echo "$batch" | tee "$P"/p/batch >"$P"/q/batch
		echo "$signal_every" | tee "$P"/p/signal_every >"$P"/q/signal_every
		for depth in 1 32; do
			queued "$1" "$depth"
		done
	done
}
queued() {
	local transport
	case $1 in
	*_ping) [ "$2" -eq 1 ] || return 0 ;;
	esac
	for transport in rc uc; do
		[ "$transport" = rc ] || [ "$1" != read ] || continue
		client op="$1" transport="$transport" size=64 depth="$2" count=70 policy=p && start c a &&
			await_done c 20 || fail "$transport, depth $2, batch $batch, signal_every $signal_every"
		expect c ops=70 errors=0
		rmdir "$C"/c
	done
}

# thread: THREAD is that of the client.
thread() {
	local comm
	for comm in /proc/[0-9]*/comm; do
		[ "$(<"$comm")" != rivet-perf-cli ] || THREAD=${comm%/comm}
	done
	[ -n "$THREAD" ] || fail "there is no thread of a client"
}
# switches: SWITCHES is how often it has slept.
switches() {
	local key value
	while read -r key value; do
		[ "$key" != voluntary_ctxt_switches: ] || SWITCHES=$value
	done <"$THREAD"/status
}
slept() { switches && [ $((SWITCHES - BEFORE)) -ge 50 ]; }

# completion is looked at all the time: who sleeps begins to poll, and back. What adaptive waits
# for is within the budget here.
completion() {
	local word ops
	policy p && echo 100000 >"$P"/p/busy_usecs || return
	server policy=p && client policy=p duration_ms=60000 && start c a && thread || return
	for word in interrupt busy coalesce adaptive interrupt; do
		echo "$word" >"$P"/p/completion
		nap 0.3
		switches && BEFORE=$SWITCHES
		case $word in
		interrupt | coalesce) wait_for 10 slept || fail "$word: $((SWITCHES - BEFORE)) sleeps" ;;
		*)
			results c && ops=$((R[ops] + 300))
			wait_for 20 more_ops "$ops" || fail "$word: nothing goes on"
			switches
			[ $((SWITCHES - BEFORE)) -lt 50 ] || fail "$word: $((SWITCHES - BEFORE)) sleeps"
			;;
		esac
	done
}

tests presets fresh names "number lanes 0 256" cpus numa "word lock percpu global" \
	"word completion interrupt coalesce busy adaptive" "number coalesce_usecs 1 10000" \
	"number coalesce_count 1 1024" "number busy_usecs 0 100000" "number poll_budget 1 256" \
	"word memory register fast cached copy auto fast_waited" "number copy_threshold 0 65536" \
	"number mr_cache_entries 0 65536" "number batch 1 128" "number signal_every 0 256" users_is_read_only \
	in_use failed_ends changed_in_use races many_users unload_is_busy unload_with_open_files \
	completion "queueing send" "queueing write" "queueing read" "queueing send_ping" "queueing write_ping"
