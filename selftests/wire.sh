# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# For the tests that use bad_peer: rivet's perf protocol in hexadecimal. Each
# function leaves what it makes in H. See rust/perf/wire.rs.

# shellcheck disable=SC2034 # used by the scripts
OPEN=2 OPENED=3 REGION=4 READY=5 CREDIT=6 SYNC=7 CHECK=8 CHECKED=9 FINISH=10 FINISHED=11

# fields BYTES:VALUE...: little-endian numbers.
fields() {
	local field i value
	H=""
	for field; do
		value=${field#*:}
		for ((i = 0; i < ${field%%:*}; i++)); do
			printf -v H '%s%02x' "$H" $(((value >> (8 * i)) & 255))
		done
	done
}

# hello KEY=VALUE...: the private data of a control connection.
hello() {
	local transport=1 op=1 verify=0 size=64 depth=1 connections=1 timeout=2000
	local magic=0x66507652 version=1 length=40 kind=1
	[ $# -eq 0 ] || local "$@"
	fields 4:$magic 2:$version 2:$length 1:$kind 1:$transport 1:$op 1:$verify \
		4:$size 4:$depth 4:$connections 4:$timeout 8:0 4:0
}

# welcome KEY=VALUE...: the private data of an accept.
welcome() {
	local token=0x1234 timeout=2000 magic=0x66507652 version=1 length=24
	[ $# -eq 0 ] || local "$@"
	fields 4:$magic 2:$version 2:$length 8:$token 4:$timeout 4:0
}

# request_of KEY=VALUE...: a client's request of an exchange (rust/perf/exchange/wire.rs).
request_of() {
	local seq=0 addr=0x1000 rkey=0x77 size=64 op=10 zero=0
	[ $# -eq 0 ] || local "$@"
	fields 8:$seq 8:$addr 4:$rkey 4:$size 1:$op 8:0 8:0 8:0 8:0 7:$zero
}

# answer_to NUMBER [VALUE]: the server's answer to one, with this value behind it.
answer_to() { fields "8:$1" "8:${2-0}"; }

# refused CODE: the private data of a reject.
refused() { fields 4:0x66507652 2:1 2:12 "1:$1" 3:0; }
