#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Clients that lie, against a server of rivet: whatever they say, it costs them
# their session, is said in words, and the next honest client is served.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"
# shellcheck source=selftests/wire.sh
. "${0%/*}/../wire.sh"

# peer STEP...: SAID is what it printed.
peer() { SAID=$(nsenter --net=/run/netns/a bad_peer client "$SERVER" 18515 "$@" 2>&1); }

# says TEXT: the peer has.
says() { [[ $SAID == *"$1"* ]] || fail "the peer says: ${SAID//$'\n'/, }"; }

# The private data of a refusal, with its code.
refusal() { echo "rejected 28 5276506601000c000$1"; }
BAD_REQUEST=1 VERSION=2 NO_SESSION=5

# counts KEY=VALUE...: by how much the server's counters must have grown.
declare -A OLD
counts() {
	local pair key
	for pair; do
		key=${pair%%=*}
		wait_for 5 result_is s "$key" $((OLD[$key] + ${pair#*=})) ||
			fail "$key went from ${OLD[$key]} to ${R[$key]}"
	done
}
remember() {
	local key
	results s
	for key in "${!R[@]}"; do OLD[$key]=${R[$key]}; done
}

# A request that is not even let in.

# request CODE KEY=VALUE...
request() {
	remember
	hello "${@:2}" && peer connect "$H" && says "$(refusal "$1")"
	counts refused=1 sessions=0
}

zeros() {
	remember
	printf -v H '%0112d' 0 && peer connect "$H" && says "$(refusal "$BAD_REQUEST")"
	counts refused=1 sessions=0
}

no_private_data() {
	remember
	peer connect "" && says "$(refusal "$BAD_REQUEST")"
	counts refused=1 sessions=0
}

# Always the same random requests, some of which begin well.
random() {
	local i j steps=()
	RANDOM=7
	for ((i = 0; i < 20; i++)); do
		hello
		H=${H:0:$((i % 4 * 8))}
		for ((j = ${#H} / 2; j < 56; j++)); do printf -v H '%s%02x' "$H" $((RANDOM & 255)); done
		steps+=(connect "$H")
	done
	remember
	peer "${steps[@]}"
	[ "$(grep -c '^rejected 28 ' <<<"$SAID")" = 20 ] || fail "the peer says: $SAID"
	counts refused=20 sessions=0
}

# Ten lines in five seconds, and the number of the others.
log_is_limited() {
	local i steps=() lines suppressed begin
	printf -v H '%0112d' 0
	for ((i = 0; i < 40; i++)); do steps+=(connect "$H"); done
	wait_for 6 false # what was logged before is forgotten
	remember
	begin=$SECONDS
	log_clear && peer "${steps[@]}"
	lines=$(log_count "connect request refused")
	counts refused=40
	suppressed=$((R[log_suppressed] - OLD[log_suppressed]))
	[ $((lines + suppressed)) = 40 ] || fail "$lines lines, $suppressed suppressed"
	[ "$lines" -ge 1 ] && [ "$lines" -le $((((SECONDS - begin) / 5 + 1) * 10)) ] ||
		fail "$lines lines in $((SECONDS - begin)) s"
	[ "$suppressed" -gt 0 ] || fail "no line was suppressed"
}

# Data connections that are not wanted.

wrong_token() {
	remember
	hello && peer connect "$H" join 0 0x1234567 && says "$(refusal "$NO_SESSION")"
	counts refused=1 sessions=1
	failed_with "the client ended the connection"
}

data_connection() {
	remember
	hello connections=2 && peer connect "$H" "$@" && says "$(refusal "$NO_SESSION")"
	failed_with "the client ended the connection"
}

# failed_with PATTERN: the session has.
failed_with() {
	counts sessions=1 sessions_failed=1 miscompares=0
	has_error s "$1"
}

# A session, and then a lie.

# lies PATTERN HELLO STEP...: the server must end the session with PATTERN.
lies() {
	local pattern=$1 words
	read -ra words <<<"$2"
	shift 2
	remember
	hello "${words[@]}" && peer connect "$H" "$@" end
	says $'\nended'
	failed_with "$pattern"
}

declare -A LIES
fields 4:0x123 4:0x456 4:0x11111111
QP=$H
fields 4:0x1000000 4:0 4:0
BAD_QP=$H
# A session of a transport whose QPs the CM does not know, with one that is not there.
UC="transport=2 op=1"
UC_WRITE="transport=2 op=3 verify=1 depth=2"
PING="transport=2 op=9"
opened=(send 0 "$OPEN" "$QP" await "$OPENED" await "$READY")
write_opened=(send 0 "$OPEN" "$QP" await "$OPENED" await "$REGION" await "$READY")
ping_opened=(send 0 "$OPEN" "$QP" await "$OPENED" await "$REGION")

# lie NAME PATTERN HELLO STEP...
case_of() {
	local name=$1
	shift
	LIES[$name]=$(printf '%q ' "$@")
	NAMES+=("a_lie $name")
}
a_lie() { eval "lies ${LIES[$1]}"; }

number() { fields "8:$1"; }
two() { fields "8:$1" "8:$2"; }
check_of() { fields "8:$1" "4:$2"; }
region() { fields "4:$1" "4:$2" "8:$3" 4:0x77 "4:$4"; }

NAMES=()
case_of unknown_kind "impossible value" "$UC" send 0 99 ""
case_of kind_0 "impossible value" "$UC" send 0 0 ""
case_of left_one_out "not the next message" "$UC" seq 1 send 0 1 ""
case_of said_it_again "not the next message" "$UC" send 0 1 "" seq -1 send 0 1 ""
case_of connection_7 "connection 7: there is no" "$UC" "${opened[@]}" send 7 "$SYNC" "0000000000000000"
case_of connection_max "no such connection" "$UC" send 0xffffffff "$READY" ""
case_of opens_connection_1 "cannot be opened" "$UC" send 1 "$OPEN" "$QP"
case_of body_longer "lies about its length" "$UC" len 8 send 0 1 ""
case_of body_beyond "lies about its length" "$UC" len 65535 send 0 1 ""
case_of body_missing "lies about its length" "$UC" len 0 send 0 "$OPEN" "$QP"
case_of short "lies about its length" "$UC" raw 0100000000000000
case_of empty "lies about its length" "$UC" raw ""
printf -v H '%0130d' 0
case_of long "control connection broke" "$UC" raw "$H"
case_of opens_twice "cannot be opened" "$UC" "${opened[@]}" send 0 "$OPEN" "$QP"
case_of opens_on_rc "cannot be opened" "" send 0 "$OPEN" "$QP"
case_of qp_number "impossible value" "$UC" send 0 "$OPEN" "$BAD_QP"
case_of ud_beyond_mtu "beyond the path MTU" "transport=3 op=1 size=1025" send 0 "$OPEN" "$QP"
region 0 1 4096 64
case_of region_for_send "does not fit" "transport=2 op=9 size=64 connections=1 verify=1" "${ping_opened[@]}" send 0 "$REGION" "$H"
region 0 2 4096 64
case_of region_slots "does not fit" "$PING" "${ping_opened[@]}" send 0 "$REGION" "$H"
region 0 0 4096 64
case_of region_empty "does not fit" "$PING" "${ping_opened[@]}" send 0 "$REGION" "$H"
region 0xffffffff 1 4096 64
case_of region_first "does not fit" "$PING" "${ping_opened[@]}" send 0 "$REGION" "$H"
region 0 1 4096 65
case_of region_stride "does not fit" "$PING" "${ping_opened[@]}" send 0 "$REGION" "$H"
region 0 1 -1 64
case_of region_beyond_memory "does not fit" "$PING" "${ping_opened[@]}" send 0 "$REGION" "$H"
region 0 1 4096 64
case_of region_twice "does not" "$PING" "${ping_opened[@]}" send 0 "$REGION" "$H" await "$READY" send 0 "$REGION" "$H"
number 1
case_of credit "does not belong" "$UC" "${opened[@]}" send 0 "$CREDIT" "$H"
case_of sync_on_write "does not belong" "$UC_WRITE" "${write_opened[@]}" send 0 "$SYNC" "$H"
fields 8:1 8:0 8:0 8:0
case_of finished "does not belong" "$UC" "${opened[@]}" send 0 "$FINISHED" "$H"
case_of ready "does not belong" "$UC" "${opened[@]}" send 0 "$READY" ""
case_of opened "does not belong" "$UC" "${opened[@]}" send 0 "$OPENED" "$QP"
fields 8:0 1:1
case_of checked "does not belong" "$UC" "${opened[@]}" send 0 "$CHECKED" "$H"
check_of 0 2
case_of check_slot "no slot" "$UC_WRITE" "${write_opened[@]}" send 0 "$CHECK" "$H"
check_of 0 0xffffffff
case_of check_slot_max "no slot" "$UC_WRITE" "${write_opened[@]}" send 0 "$CHECK" "$H"
check_of 0 0
case_of check_of_send "no slot" "$UC verify=1" "${opened[@]}" send 0 "$CHECK" "$H"
case_of check_without_verify "does not belong" "transport=2 op=3" "${write_opened[@]}" send 0 "$CHECK" "$H"
case_of checks_too_many "more checks" "$UC_WRITE" "${write_opened[@]}" send 0 "$CHECK" "$H" send 0 "$CHECK" "$H" send 0 "$CHECK" "$H"
two -1 -1
case_of finish_max "impossible value" "$UC" "${opened[@]}" send 0 "$FINISH" "$H"
two 1 0x1000000000001
case_of finish_too_large "impossible value" "$UC" "${opened[@]}" send 0 "$FINISH" "$H"
two 0 0
case_of finish_too_early "no such connection" "$UC" send 0 "$FINISH" "$H"
case_of finish_twice "does not belong" "$UC" "${opened[@]}" send 0 "$FINISH" "$H" await "$FINISHED" send 0 "$FINISH" "$H"
two 5 5
case_of finish_without_sending "silent" "" join 0 - await "$READY" send 0 "$FINISH" "$H"
number 1
case_of sync_of_fewer "fewer messages" "" join 0 - await "$READY" post 64 post 64 sleep 300 send 0 "$SYNC" "$H"
case_of data_shorter "kind or length" "" join 0 - await "$READY" post 63
case_of data_empty "kind or length" "" join 0 - await "$READY" post 0
case_of data_longer "connection 0 broke" "" join 0 - await "$READY" post 65
case_of data_without_immediate "kind or length" "op=2" join 0 - await "$READY" post 64
# Requests of exchanges.
OUT="op=10" IN="op=11"
region 0 1 4096 64
joined=(join 0 - send 0 "$REGION" "$H" await "$READY")
request_of
case_of request_before_its_region "does not belong" "$OUT" join 0 - data "$H"
case_of request_rkey_of_nothing "connection 0 broke" "$OUT" "${joined[@]}" data "$H"
request_of op=11
case_of request_read_of_nothing "connection 0 broke" "$IN" "${joined[@]}" data "$H"
case_of request_op "impossible value" "$OUT" "${joined[@]}" data "$H"
case_of request_shorter "kind or length" "$IN" "${joined[@]}" data "${H:0:126}"
case_of request_empty "kind or length" "$IN" "${joined[@]}" data ""
case_of request_longer "connection 0 broke" "$IN" "${joined[@]}" data "${H}00"
request_of size=65
case_of request_size "lies about its length" "$OUT" "${joined[@]}" data "$H"
request_of size=0xffffffff
case_of request_size_max "lies about its length" "$OUT" "${joined[@]}" data "$H"
request_of size=0
case_of request_size_0 "lies about its length" "$OUT" "${joined[@]}" data "$H"
request_of zero=1
case_of request_zeros "impossible value" "$OUT" "${joined[@]}" data "$H"
for seq in 1 -1 0x100000000; do
	request_of seq=$seq
	case_of "request_number_$seq" "not the next message" "$OUT" "${joined[@]}" data "$H"
done
request_of op=11
case_of request_again "not the next message" "$IN" "${joined[@]}" request "$H" sleep 200 request "$H"
# The second is one too many, unless the first was answered meanwhile.
case_of request_twice_at_once "@(more requests than|it is not the next)" "$IN" "${joined[@]}" burst 2 "$H"
case_of request_16_at_once "@(more requests than|it is not the next)" "$IN" "${joined[@]}" burst 16 "$H"
number 1
case_of sync_of_requests "does not belong" "$IN" "${joined[@]}" send 0 "$SYNC" "$H"
two 0 0
finish=(send 0 "$FINISH" "$H" await "$FINISHED")
request_of op=11
case_of request_after_finish "does not belong" "$IN" "${joined[@]}" "${finish[@]}" data "$H"

# What the server reads is not what belongs there.
request_of_zeros() {
	remember
	hello op=11 verify=1 && local hello=$H
	region 0 1 4096 128 && local region=$H
	two 1 1 && local last=$H
	request_of op=11
	peer connect "$hello" join 0 - send 0 "$REGION" "$region" await "$READY" request "$H" \
		send 0 "$FINISH" "$last" await "$FINISHED" close
	says "message $FINISHED"
	counts miscompares=1 ops=1 sessions=1 sessions_failed=0
}

case_of silence "silent for 1500 ms" "$UC" "${opened[@]}" sleep 1000
case_of silence_from_the_start "silent for 1500 ms" "$UC"

vanishes() {
	remember
	hello && peer connect "$H"
	says established
	failed_with "the client ended"
}

keep_server timeout_ms=1500
tests zeros no_private_data random log_is_limited \
	"request $BAD_REQUEST magic=0x66507653" "request $VERSION version=2" "request $VERSION version=0" \
	"request $BAD_REQUEST length=39" "request $BAD_REQUEST length=65535" "request $BAD_REQUEST kind=3" \
	"request $BAD_REQUEST transport=0" "request $BAD_REQUEST transport=4" "request $BAD_REQUEST op=12" "request $BAD_REQUEST transport=2 op=10" "request $BAD_REQUEST transport=3 op=11" \
	"request $BAD_REQUEST transport=3 op=3" "request $BAD_REQUEST transport=2 op=5" \
	"request $BAD_REQUEST size=0" "request $BAD_REQUEST size=1048577" "request $BAD_REQUEST depth=1025" \
	"request $BAD_REQUEST connections=0" "request $BAD_REQUEST connections=257" \
	"request $BAD_REQUEST op=6 size=64" "request $BAD_REQUEST op=8 depth=2" \
	"request $BAD_REQUEST size=1048576 depth=1024" "request $BAD_REQUEST verify=2" \
	"request $BAD_REQUEST timeout=99" "request $BAD_REQUEST timeout=60001" \
	wrong_token "data_connection join 1 -" "data_connection join 0 - join 0 -" \
	"data_connection join 2 -" vanishes "${NAMES[@]}" request_of_zeros serves
