#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# perf's capsule_read against the kernel's own target, and against targets that lie:
# what it reads is right, what cannot be is refused with an errno and one line, and
# whatever the target does ends the run with its reason.

# shellcheck source=selftests/nvme/hostile.sh
. "${0%/*}/hostile.sh"
# shellcheck source=selftests/values.sh
. "${0%/*}/../values.sh"

# An end's settings are of no host.
needs_rivet
E=c
subject() { make c; }

# reads_at NQN KEY=VALUE...: the client c, not started.
reads_at() {
	make c role=client address="$SERVER" op=capsule_read nqn="$1" timeout_ms=3000 "${@:2}"
}

# starts: it does.
starts() { start c ""; }

# refused ERRNO PATTERN KEY=VALUE...: a start that fails so, with one line, and leaves a
# client that works.
refused() {
	reads_at "${NAMED:-$NQN}" "${@:3}"
	log_clear
	put c/start 1
	[ "$ERRNO" = "$1" ] || fail "${*:3}: start: $ERRNO, not $1: ${LINES[*]}"
	[ ${#LINES[@]} -eq 1 ] || fail "${*:3}: ${#LINES[@]} lines: ${LINES[*]}"
	has_error c "$2"
	state_is c failed || fail "${*:3}: the state is $V"
	rmdir "$C"/c
}

# pattern DEVICE: each word of a block is the number of the byte that it begins with.
pattern() {
	fio --name=pattern --filename="$1" --rw=write --bs=512 --direct=1 --verify=pattern --verify_pattern=%o --do_verify=0 \
		--ioengine=psync --output=/tmp/pattern >/dev/null 2>&1 || fail "pattern: $(tail -n 3 /tmp/pattern)"
}

# a_pattern: the target of most tests, with 4 MiB of it.
a_pattern() { a_target 4 && pattern /dev/disk0; }

# done_right COUNT KEY=VALUE...: so many READs, verified.
done_right() {
	reads_at "$NQN" "count=$1" verify=1 "${@:2}" && starts && await_done c || return
	expect c "ops=$1" errors=0 miscompares=0
	[ "${R[bytes]}" = $(($1 * ${SIZE:-4096})) ] || fail "${*:2}: ${R[bytes]} bytes"
	stats c
	[ "${S[posts]}" = "$1" ] || [ "${S[posts]}" = $(($1 + ${QUEUES:-1})) ] || fail "${*:2}: ${S[posts]} work requests"
	rmdir "$C"/c
}

results_right() {
	a_pattern
	done_right 500
	for depth in 2 7 31 32 127; do done_right 600 depth="$depth"; done
	for SIZE in 512 1024 8192 131072; do done_right 100 depth=8 size="$SIZE"; done
}

# Fewer than are sent at a time, and counts that no lot divides.
counts() {
	a_pattern
	for count in 1 2 31 33 100; do done_right "$count" depth=32; done
}

by_time() {
	a_pattern
	reads_at "$NQN" duration_ms=500 depth=8 verify=1 && starts && await_done c || return
	results c
	[ "${R[ops]}" -gt 20 ] && [ "${R[miscompares]}" = 0 ] || fail "${R[ops]} done, ${R[miscompares]} wrong"
}

queues() {
	a_pattern
	QUEUES=3
	done_right 600 connections=3 depth=4
}

policies() {
	local mode
	a_pattern
	policy p
	for mode in interrupt coalesce busy adaptive; do
		turn completion="$mode"
		done_right 200 policy=p depth=1
		done_right 200 policy=p depth=32
	done
	turn completion=adaptive
	for mode in batch=1 batch=4 batch=128 signal_every=1 signal_every=256 poll_budget=1 numa=0 cpus=0; do
		turn "$mode"
		done_right 300 policy=p depth=16
		done_right 50 policy=p
	done
	for mode in naive latency throughput; do done_right 200 policy="$mode" depth=9; done
}

# lots BATCH DEPTH: READs go in lots of as many, each with one doorbell.
lots() {
	local rings
	a_pattern
	policy p "batch=$1"
	reads_at "$NQN" policy=p "depth=$2" count=960 && starts && await_done c || return
	stats c
	rings=$((S[doorbells] - S[recv_doorbells]))
	progress "$rings doorbells for 960 READs in lots of $1, of $2"
	[ "$rings" -le $((960 / $1 + 20)) ] || fail "$rings doorbells"
	[ "${S[signalled]}" -le 140 ] || fail "${S[signalled]} asked for a completion"
}

# The disk has other data.
wrong_data() {
	a_target 4
	reads_at "$NQN" count=100 verify=1 depth=4 && starts && await_done c || return
	results c
	# The first block's pattern is what an empty disk has.
	[ "${R[miscompares]}" -ge 90 ] || fail "${R[miscompares]} of 100 are wrong"
}

ipv6() {
	disk disk0 4 && pattern /dev/disk0 && subsystem "$NQN" && namespace "$NQN" 1 /dev/disk0 && port 1 fd77::2 && offer 1 "$NQN"
	reads_at "$NQN" count=100 verify=1 address=fd77::2 && starts && await_done c && expect c ops=100 miscompares=0
}

large_blocks() {
	disk disk0 4 blocksize=4096 && subsystem "$NQN" && namespace "$NQN" 1 /dev/disk0 && port 1 "$SERVER" && offer 1 "$NQN"
	refused EINVAL "size 512: not whole blocks" size=512
	reads_at "$NQN" count=50 && starts && await_done c && expect c ops=50
}

second_namespace() {
	a_target 4
	disk disk1 4 && pattern /dev/disk1 && namespace "$NQN" 7 /dev/disk1 || fail "no namespace"
	reads_at "$NQN" nsid=7 count=100 verify=1 && starts && await_done c && expect c ops=100 miscompares=0
	rmdir "$C"/c
	refused ENXIO "nsid 2: the subsystem has no such namespace" nsid=2
	refused ENXIO "nsid 4294967294" nsid=4294967294
}

# ---- what cannot be -----------------------------------------------------------

wrong_names() {
	a_target 4 && echo 0 >"$N/subsystems/$NQN/attr_allow_any_host"
	NAMED=$NQN:other refused ENOENT "nqn: the target has no such subsystem"
	refused EACCES "hostnqn: the subsystem does not take this host" hostnqn="$HOSTNQN"
	mkdir "$N/hosts/$HOSTNQN" && ln -s "$N/hosts/$HOSTNQN" "$N/subsystems/$NQN/allowed_hosts/$HOSTNQN"
	refused EACCES "hostnqn"
	reads_at "$NQN" hostnqn="$HOSTNQN" count=20 && starts && await_done c
}

nowhere() {
	a_target 4
	refused ECONNREFUSED "queue 0: refused" port=4421
	withdraw 1 "$NQN"
	refused ECONNREFUSED "queue 0: refused"
}

too_much() {
	a_target 4
	refused E2BIG "depth 128: a queue of the controller takes 127 commands" depth=128
	refused E2BIG "depth 1024" depth=1024
	refused EINVAL "size 100: not whole blocks" size=100
	refused EINVAL "size 4097" size=4097
	refused EINVAL "more than 256 MiB" size=1048576 depth=1024
	echo 2 >"$N/subsystems/$NQN/attr_qid_max"
	refused E2BIG "connections 3: the controller has 2 I/O queues" connections=3
	echo 128 >"$N/subsystems/$NQN/attr_qid_max"
}

settings() {
	refused EINVAL "nqn: only with op capsule_read" op=send
	make c role=client address="$SERVER" op=capsule_read && put c/start 1
	[ "$ERRNO" = EINVAL ] && [ ${#LINES[@]} -eq 1 ] || fail "without nqn: $ERRNO ${LINES[*]}"
	has_error c "nqn is not set"
	rmdir "$C"/c
	refused EINVAL "capsule_read has one SGE" sges=2
	refused EINVAL "the transport does not carry" transport=uc
	refused EINVAL "the transport does not carry" transport=ud
	refused EOPNOTSUPP "submitters: only for" submitters=1
	refused EINVAL "buffers: only with submitters" buffers=2
	refused EINVAL "nqn is the client's choice" role=server
	make c role=server address="$SERVER" op=capsule_read && put c/start 1
	[ "$ERRNO" = EINVAL ] || fail "a server: $ERRNO"
	has_error c "op capsule_read has no server"
	rmdir "$C"/c
	make c role=server address="$SERVER" hostnqn="$HOSTNQN" && put c/start 1
	[ "$ERRNO" = EINVAL ] || fail "a server: $ERRNO"
	has_error c "hostnqn is the client's choice"
}

# values: bad ones of each attribute.
name_values() { # ATTRIBUTE
	local long=nqn.${LONG:0:219}
	make c || return
	bad "$1" EINVAL garbage $'\n' "$LONG" -1 $'\xff\xfe' "   " nqn "nqn. x" $'nqn.a\n\n' 'NQN.a' "${long}x"
	good "$1" nqn.2026-01.a:b "$long" 'nqn.%s%n'
	bad "$1" EINVAL iqn.a
}

defaults() {
	local pair
	make c role=client op=capsule_read || return
	for pair in port=4420 size=4096 nsid=1 nqn=unset "hostnqn=by chance" depth=1; do
		get c "${pair%%=*}"
		[ "$V" = "${pair#*=}" ] || fail "${pair%%=*} is '$V', not '${pair#*=}'"
	done
	echo send >"$C"/c/op
	get c port
	[ "$V" = 18515 ] || fail "port is $V"
}

# ---- ends ---------------------------------------------------------------------

# busy [KEY=VALUE...]: a load that goes on.
busy() {
	reads_at "$NQN" count=0 duration_ms=600000 depth=16 connections=2 "$@" && starts && wait_for 10 has_done 200 ||
		fail "no load: $(<"$C"/c/error)"
}

stop_under_load() {
	local n
	a_target 4
	for n in 1 2 3 4 5; do
		busy
		put c/stop 1
		[ "$ERRNO" = OK ] || fail "stop: $ERRNO"
		state_is c "done" || fail "the state is $V"
		rmdir "$C"/c
	done
}

rmdir_under_load() {
	a_target 4
	busy verify=1
	rmdir "$C"/c || fail "rmdir"
}

again() {
	a_target 4
	reads_at "$NQN" count=50
	for n in 1 2 3; do starts && await_done c && expect c ops=50; done
	busy_refuses
}
busy_refuses() {
	put c/duration_ms 60000
	starts
	put c/depth 2
	[ "$ERRNO" = EBUSY ] || fail "depth: $ERRNO"
	put c/start 1
	[ "$ERRNO" = EBUSY ] || fail "start: $ERRNO"
}

# A target that goes: its listener and all of its connections.
target_goes() {
	a_target 4
	busy
	log_clear
	withdraw 1 "$NQN" && rmdir "$N"/ports/1/subsystems/"$NQN" 2>/dev/null
	await_failed c 20 || return
	has_error c "the controller ended the connection"
	[ "$(log_count 'perf: a client failed')" = 1 ] || fail "$(log_count 'perf: a client failed') lines"
}

# A disk that stands still: nothing is answered any more.
disk_stands() {
	disk disk0 4 && stallable held /dev/disk0 && subsystem "$NQN" && namespace "$NQN" 1 /dev/mapper/held && port 1 "$SERVER" &&
		offer 1 "$NQN" || fail "no target"
	busy timeout_ms=1000
	stall held
	await_failed c 20
	has_error c "no READ was answered for 1000 ms"
	unstall held
}

device_goes() {
	needs links
	a_target 4
	busy
	rdma link delete rxea
	await_failed c 20
	rmdir "$C"/c
	rdma link add rxea type rxe netdev va && wait_for 10 gid_ready rxea ffff:0a4d:0001 || fail "no device"
}

unload() {
	a_target 4
	busy
	rmdir "$C"/c
	rivet_unload || fail "it cannot be unloaded"
	rivet_load || fail "it cannot be loaded"
}

# ---- targets that lie ---------------------------------------------------------

# lies ERRNO|PATTERN RULE...: a run that ends so. The errno is that of a start that
# fails; one that begins fails with PATTERN.
lies() {
	local text=$1 errno=${1%%|*}
	shift
	text=${text#*|}
	against "$@"
	reads_at "$BADNQN" count=2000 depth=4 verify=0
	log_clear
	put c/start 1
	if [ "$errno" = RUN ]; then
		[ "$ERRNO" = OK ] || fail "$*: start: $ERRNO ${LINES[*]}"
		await_failed c 20
		[ "$(log_count 'perf: a client failed')" = 1 ] || fail "$*: not one line"
	else
		[ "$ERRNO" = "$errno" ] || fail "$*: start: $ERRNO, not $errno"
		[ ${#LINES[@]} -eq 1 ] || fail "$*: ${#LINES[@]} lines"
	fi
	has_error c "$text"
	RULES=$*
	did "$@"
	rmdir "$C"/c
	quiet
	kill -KILL "$BAD"
	wait "$BAD" 2>/dev/null
}

lies_of_answers() {
	lies "RUN|an answer to command 0xfff" "read#30:cid=0xfff"
	lies "RUN|an answer to command 0xffff" "read#30:cid=0xffff"
	# Of a READ that is not there: ids are below 8 at depth 4.
	lies "RUN|an answer to command 0x8, which" "read#30:cid=8"
	lies "RUN|an answer to command" "read#30:again"
	lies "RUN|an answer to command" "read#30:twice"
	lies "RUN|status 0x281 (read error)" "read#30:status=0x281"
	lies "RUN|status 0x7ff" "read#30:status=0x7ff"
	local length
	for length in 0 8 15 32; do lies "RUN|" "read#30:length=$length"; done
	lies "RUN|queue 1: no READ was answered for 3000 ms" "read#30:silence"
	lies "RUN|the controller ended the connection" "read#30:vanish"
	lies "RUN|the controller ended the connection" "read#30:vanish-all"
	lies "RUN|" "read#30:inv=0x1234"
	lies "RUN|" "read#30:beyond=1048576"
}

# Answers, but other data, or none.
lies_of_data() {
	local rule
	for rule in "read:no-data" "read:half-data"; do
		against "$rule"
		reads_at "$BADNQN" count=100 depth=4 verify=1
		starts && await_done c || return
		results c
		[ "${R[miscompares]}" -ge 90 ] || fail "$rule: ${R[miscompares]} of 100"
		rmdir "$C"/c
		kill -KILL "$BAD"
		wait "$BAD" 2>/dev/null
	done
}

lies_of_setup() {
	lies "ECONNREFUSED|the controller refused the connection: no resources" "request:reject=6"
	lies "ECONNREFUSED|invalid queue ID" "io-request:reject=3"
	lies "ECONNREFUSED|refused" "request:bare"
	lies "EPROTO|a reply of record format 1, not 0" "request:recfmt=1"
	lies "EPROTO|a receive queue that is too small" "io-request:crqsize=0"
	lies "E2BIG|takes 3 commands at a time" "io-request:crqsize=3"
	lies "ETIMEDOUT|Connect: no answer in 3000 ms" "connect:silence"
	lies "ETIMEDOUT|no answer in 3000 ms" "request:silence"
	lies "EACCES|authentication" "connect:value=0x20001"
	lies "EACCES|hostnqn" "connect:status=0x184"
	lies "ETIMEDOUT|the number of queues: no answer" "features:silence"
	lies "EIO|Connect: the controller answers with status 0x180" "io-connect:status=0x180"
	lies "EIO|CAP: the controller answers with status 0x2" "get-cap:status=2"
	lies "E2BIG|takes 1 commands at a time" "get-cap:value=1"
	lies "EIO|the controller has failed" "get-csts:value=2"
	lies "ETIMEDOUT|the controller is not ready" "get-csts:value=0"
	lies "EOPNOTSUPP|keyed" "identify:poke=536/4/0"
	lies "ENXIO|nsid 1: the subsystem has no such namespace" "identify-ns:no-data"
	lies "ENXIO|nsid 1: the subsystem has no such namespace" "identify-ns:status=0xb"
	lies "EPROTO|blocks of 2^63 bytes" "identify-ns:poke=130/1/63"
	lies "EOPNOTSUPP|metadata" "identify-ns:poke=128/1/8"
	lies "ENOSPC|size 4096" "identify-ns:poke=0/8/7"
	lies "ECONNRESET|the controller ended the connection" "identify:vanish"
	lies "EPROTO|an answer to command 0x1" "identify:cid=1"
	lies "EPROTO|an answer to command 0x1" "ready:unsolicited=1"
}

nvme_tests results_right counts by_time queues policies "lots 1 32" "lots 8 32" "lots 32 32" wrong_data ipv6 large_blocks \
	second_namespace wrong_names nowhere too_much settings "name_values nqn" "name_values hostnqn" \
	"number nsid 1 4294967294" defaults stop_under_load rmdir_under_load again target_goes disk_stands device_goes unload \
	lies_of_answers lies_of_data lies_of_setup
