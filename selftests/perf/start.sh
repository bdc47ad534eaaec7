#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What is refused when an end is started, or while it runs: an errno, the reason
# in one line of the log, and the end does not run.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# refused NAME NAMESPACE ERRNO PATTERN
refused() {
	NS=$2 put "$1/start" 1
	[ "$ERRNO" = "$3" ] || fail "start: $ERRNO, not $3"
	[ ${#LINES[@]} -eq 1 ] || fail "${#LINES[@]} lines in the log"
	# shellcheck disable=SC2053 # a pattern
	[[ ${LINES[0]-} == "rivet: perf/$1: start: "*$4* ]] || fail "log: ${LINES[0]-}"
	get "$1" state
	[ "$V" != running ] || fail "it runs"
}

without_role() { make c address="$SERVER" && refused c a EINVAL role; }
without_address() { make c role=client && refused c a EDESTADDRREQ address; }

# Each operation on each transport that does not carry it.
transports() {
	local op transport
	client || return
	for transport in uc ud; do
		for op in read fetch_add cmp_swap exchange_out exchange_in write write_imm write_ping; do
			[ "$transport" = ud ] || [[ $op != write* ]] || continue
			echo "$transport" >"$C"/c/transport
			echo "$op" >"$C"/c/op
			refused c a EINVAL "transport"
			state_is c failed || fail "the state is $V"
		done
	done
}

# settings PATTERN KEY=VALUE...: of a client that do not fit together.
settings() { client "${@:2}" && refused c a EINVAL "$1"; }

# A policy that was there when it was set, and is not any more.
policy_went() {
	policy p && server && client policy=p && rmdir "$P/p" || return
	refused c a ENOENT "'p' is not allowed; allowed: the policies that there are: naive default latency throughput"
	state_is c failed || fail "the state is $V"
	get c policy
	[ "$V" = p ] || fail "policy is $V"
	policy p && start c a && await_done c
}

# Without a CPU that may poll, write_ping has nothing that tells when it is done.
write_ping_sleeps() {
	policy p completion="$1" && client op=write_ping policy=p && refused c a EOPNOTSUPP "policy p is $1; allowed: "
	state_is c failed || fail "the state is $V"
	echo adaptive >"$P"/p/completion
	server && start c a && await_done c
}

# server_has KEY=VALUE: what only clients can choose.
server_has() { make s role=server address="$SERVER" "$1" && refused s b EINVAL "client's choice"; }

# A start that is refused is no run, and shows nothing of the one before: the reason only.
after_a_run() {
	server && client count=50 && start c a && await_done c && expect c ops=50 || return
	echo uc >"$C"/c/transport
	echo read >"$C"/c/op
	refused c a EINVAL "transport"
	state_is c failed || fail "the state is $V"
	has_error c "does not carry the operation"
	expect c ops=0 sessions=0
	echo rc >"$C"/c/transport
	start c a && await_done c && expect c ops=50
	[ -z "$(<"$C"/c/error)" ] || fail "error: $(<"$C"/c/error)"
	policy p && echo p >"$C"/c/policy && rmdir "$P"/p || return
	refused c a ENOENT "'p' is not allowed"
	has_error c "'p' is not allowed"
	expect c ops=0
	# A server too.
	put s/stop 1
	echo 5 >"$C"/s/count
	refused s b EINVAL "client's choice"
	has_error s "client's choice"
	expect s ops=0 sessions=0
}

while_running() {
	local pair
	server && client duration_ms=60000 && start c a || return
	refused_busy c/start 1
	refused_busy s/start 1
	for pair in role=client address=10.77.0.1 port=1 device="$DEV_A" transport=uc op=write size=1 sges=2 depth=2 \
		connections=2 count=5 duration_ms=5 timeout_ms=500 verify=1 policy=latency; do
		for end in c s; do
			get "$end" "${pair%=*}"
			old=$V
			refused_busy "$end"/"${pair%=*}" "${pair#*=}"
			get "$end" "${pair%=*}"
			[ "$V" = "$old" ] || fail "$end: ${pair%=*} has become $V"
		done
	done
	state_is c running && state_is s running || fail "an end does not run any more"
}
refused_busy() {
	put "$1" "$2"
	[ "$ERRNO" = EBUSY ] && [ ${#LINES[@]} -eq 1 ] || fail "$1: $ERRNO, ${#LINES[@]} lines"
}

# unreachable ADDRESS ERRNO PATTERN
unreachable() {
	needs namespaces
	client address="$1" timeout_ms=1000 && refused c a "$2" "$3"
	state_is c failed || fail "the state is $V"
}

# cannot_listen ADDRESS ERRNO
cannot_listen() {
	needs namespaces
	make s role=server address="$1" && refused s b "$2" "cannot listen on"
	state_is s failed || fail "the state is $V"
}

port_in_use() {
	server port=7777 && make s2 role=server address="$SERVER" port=7777 && refused s2 b EADDRINUSE "listens there"
	rmdir "$C"/s2
	run_load 10 port=7777
	rmdir "$C"/s
	server port=7777
}

client_device() {
	needs namespaces
	server && client device="$DEV_B" count=10 && refused c a ENODEV "$DEV_A"
	has_error c "$DEV_A"
	echo "$DEV_A" >"$C"/c/device
	start c a && await_done c && expect c ops=10
}

server_device() {
	needs namespaces
	make s role=server address="$SERVER" device="$DEV_A" || return
	NS=b put s/start 1
	if [ "$ERRNO" = OK ]; then
		client && refused c a ECONNREFUSED "refused"
		expect s refused=1 sessions=0
		rmdir "$C"/c
	else
		[ "$ERRNO" = ENODEV ] || fail "start: $ERRNO"
	fi
	rmdir "$C"/s
	server device="$DEV_B" && serves
}

any_address() {
	server address=0.0.0.0 && serves
}

tests without_role without_address transports "settings size op=fetch_add size=64" "settings size op=cmp_swap size=4" \
	"settings SGE op=fetch_add sges=2" "settings depth op=send_ping depth=2" "settings depth op=write_ping depth=2" \
	"settings SGE op=exchange_out sges=2" "settings SGE op=exchange_in sges=2" \
	"settings MiB op=exchange_out size=1048576 depth=1024" "settings MiB op=exchange_in size=1048576 depth=1024" \
	"settings MiB size=1048576 depth=1024" "server_has count=5" "server_has duration_ms=5" "server_has verify=1" \
	"server_has sges=2" policy_went "write_ping_sleeps interrupt" \
	"write_ping_sleeps coalesce" while_running after_a_run "unreachable 192.0.2.1 ENETUNREACH 192.0.2.1" "unreachable 10.77.0.99 ETIMEDOUT resolved" \
	"unreachable fd78::1 ENETUNREACH fd78::1" "cannot_listen 10.77.0.1 EADDRNOTAVAIL" "cannot_listen fd77::1 EADDRNOTAVAIL" \
	port_in_use client_device server_device any_address
