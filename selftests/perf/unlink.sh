#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The RDMA device goes under full traffic. Both ends end with an error, and with
# a new device all goes on, without loading the module again.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"
needs links

restore() { link a && link b; }

# traffic KEY=VALUE...
traffic() {
	server timeout_ms=1500 && client timeout_ms=1500 duration_ms=60000 depth=16 "$@" && start c a || return
	nap 0.5
	state_is c running || fail "the client is $V"
}

both_fail() {
	await_failed c 8
	wait_for 8 result_is s sessions_failed 1 || fail "the server's session goes on"
	echo "client: $(<"$C"/c/error)"
	echo "server: $(<"$C"/s/error)"
	state_is s running || fail "the server is $V"
}

client_device() {
	needs namespaces
	traffic "$@" || return
	rdma link delete "$DEV_A" || fail "the device cannot be deleted"
	[ ! -d "/sys/class/infiniband/$DEV_A" ] || fail "the device is still there"
	both_fail
	has_error c "device"
	NS=a put c/start 1
	[ "$ERRNO" = ENODEV ] || fail "start without a device: $ERRNO"
	link a
	rmdir "$C"/c
	serves
}

server_device() {
	traffic "$@" || return
	log_clear
	rdma link delete "$DEV_B" || fail "the device cannot be deleted"
	[ ! -d "/sys/class/infiniband/$DEV_B" ] || fail "the device is still there"
	both_fail
	rmdir "$C"/c
	has_error s "device"
	link b
	wait_for 5 listens_again || fail "the server does not listen again"
	serves
	expect s sessions=2 sessions_failed=1
}
listens_again() { [ "$(log_count 'listening on .* again')" = 1 ]; }

# A server that is only waiting.
idle_server() {
	server && log_clear && rdma link delete "$DEV_B" || return
	state_is s running || fail "the server is $V"
	link b
	wait_for 5 listens_again || fail "the server does not listen again"
	serves
}

tests "client_device op=send connections=4 policy=interrupt" "client_device op=write verify=1 size=4096" \
	"client_device op=exchange_out verify=1 size=4096" "client_device op=exchange_in size=65536 policy=interrupt" \
	"server_device op=exchange_out size=65536 policy=latency" "server_device op=exchange_in verify=1 size=4096" \
	"client_device transport=ud" "client_device transport=uc policy=latency" \
	"server_device op=send connections=4" "server_device op=read size=65536" \
	"server_device transport=ud policy=latency" "server_device transport=uc op=write" idle_server
