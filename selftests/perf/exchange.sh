#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What storage does: a request, the server's WRITE or READ, its answer. Payloads
# of 1 byte to 1 MiB, one or many at a time, by each way to wait and to post, each
# checked.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# exchanges COUNT OP KEY=VALUE... POLICY: on a server of its own.
exchanges() {
	local policy=${*: -1} name=s_${*: -1}
	server "$name" policy="$policy" || return
	run_load "$1" op="$2" policy="$policy" "${@:3:$#-3}"
	expect "$name" ops="$1" errors=0 miscompares=0 lost=0 sessions=1 sessions_failed=0
	rmdir "$C/$name"
}

# sizes OP SIZE...
sizes() {
	local size
	server || return
	for size in "${@:2}"; do
		run_load 5 op="$1" size="$size" || fail "size $size"
		run_load 40 op="$1" size="$size" depth=32 || fail "size $size, depth 32"
	done
}

# policies OP DEPTH CONNECTIONS POLICY...
policies() {
	local name
	policy interrupt completion=interrupt
	policy coalesce completion=coalesce
	policy busy completion=busy
	for name in "${@:4}"; do
		exchanges 150 "$1" size=5000 depth="$2" connections="$3" "$name" || fail "$name"
	done
}

# queues OP BATCH SIGNAL_EVERY: also with slots that are just enough.
queues() {
	policy p batch="$2" signal_every="$3" || return
	exchanges 300 "$1" size=70 depth=7 p
	exchanges 100 "$1" size=20000 depth=5 p
	exchanges 20 "$1" size=20000 p
}

# A WRITE and its answer are one doorbell, and few of them ask for a completion.
doorbells() {
	server && run_load 640 op=exchange_out depth=32 verify=0 || return
	wait_for 3 has_posted 1280 || fail "posts: ${S[posts]}, not 1280"
	echo "${S[posts]} posts, ${S[doorbells]} doorbells (${S[recv_doorbells]} of receives), ${S[signalled]} signalled, ${S[completions]} completions"
	[ "${S[signalled]}" -ge 40 ] && [ "${S[signalled]}" -le 80 ] || fail "signalled: ${S[signalled]}"
	# Those of the receives are among them.
	[ "${S[doorbells]}" -le 700 ] || fail "doorbells: ${S[doorbells]}"
	# Each posts half of the receives.
	[ "${S[recv_doorbells]}" -ge 1 ] && [ "${S[recv_doorbells]}" -lt "${S[doorbells]}" ] ||
		fail "recv_doorbells: ${S[recv_doorbells]} of ${S[doorbells]}"
}
has_posted() { stats s && [ "${S[posts]}" = "$1" ]; }

deep() { server && run_load 2100 op="$1" size=64 depth=1024; }

by_time() {
	server && client op="$1" size=4096 depth=16 verify=1 connections=2 duration_ms=700 && start c a || return
	await_done c && expect c errors=0 miscompares=0
	[ "${R[ops]}" -gt 0 ] && expect s ops="${R[ops]}" miscompares=0
}

list=()
for op in exchange_out exchange_in; do
	list+=("sizes $op 1 7 64 4097 16384 16385 1048576" "policies $op 1 1 naive latency coalesce"
		"policies $op 1 4 interrupt default" "policies $op 32 1 busy throughput"
		"policies $op 32 4 naive coalesce latency"
		"queues $op 1 1" "queues $op 1 256" "queues $op 3 3" "queues $op 128 256"
		"deep $op" "by_time $op")
done
tests "${list[@]}" doorbells
