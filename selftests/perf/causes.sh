#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Connections that fail: the error and the one line in the kernel's log name the
# stage, the status, and what to look at.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"
needs namespaces network

restore() {
	{
		ip -n a link delete other
		tc -n b qdisc del dev vb ingress
	} 2>/dev/null
	mtu 1500
	link b
}

mtu() { ip -n a link set va mtu "$1" && ip -n b link set vb mtu "$1"; }

# told ERRNO PATTERN: by a start that fails.
told() {
	NS=a put c/start 1
	[ "$ERRNO" = "$1" ] || fail "start: $ERRNO, not $1"
	[ ${#LINES[@]} -eq 1 ] || fail "${#LINES[@]} lines in the log"
	# shellcheck disable=SC2053 # a pattern
	[[ ${LINES[0]-} == *$2* ]] || fail "log: ${LINES[0]-}"
	has_error c "$2"
}

no_route() { client address=192.0.2.1 && told ENETUNREACH "192.0.2.1*error -101; there is no route*ip route get"; }
no_neighbour() { client address=10.77.0.99 timeout_ms=500 && told ETIMEDOUT "cannot be resolved*error -110; nobody*ip neigh"; }

# By an interface that no RDMA device is on.
no_device() {
	ip -n a link add other type dummy && ip -n a addr add 10.78.0.1/24 dev other && ip -n a link set other up || return
	ip -n a neigh replace 10.78.0.2 lladdr 02:00:00:00:00:02 dev other nud permanent
	client address=10.78.0.2 timeout_ms=500 && told ENODEV "error -19; *no RDMA device*gids"
}

nobody_listens() { client && told ECONNREFUSED "refused: *nobody listens"; }
service_refuses() { server op=read && client op=write && told ECONNREFUSED "refused: *op: allowed: read"; }

# The peer's machine is there, its device is not.
nobody_answers() {
	rdma link delete rxeb || return
	client timeout_ms=400
	told ETIMEDOUT "answer to the connect request took longer than * ms; *port 4791*NAT"
}

# Small messages pass, so the connection is made; packets of the path's MTU are lost on
# the way.
long_packets() {
	mtu 9000 && renew
	tc -n b qdisc add dev vb ingress && tc -n b filter add dev vb parent ffff: protocol ip u32 \
		match u16 0x1000 0xf000 at 2 action drop || skip "packets cannot be filtered"
	server timeout_ms=1000 && client op=write size=65536 count=10 timeout_ms=1000 && start c a || return
	# rxe never gives up by itself.
	await_failed c 12
	has_error c "connection 0: nothing was completed for 4000 ms, *long ones (4096 bytes and headers)*ping -M do -s 4096"
	[ "$(log_count 'nothing was completed')" -ge 1 ] || fail "the log says nothing"
}

tests no_route no_neighbour no_device nobody_listens service_refuses nobody_answers long_packets
