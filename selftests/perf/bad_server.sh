#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Servers that lie, against a client of rivet: it ends in time, with an error in
# words.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"
# shellcheck source=selftests/wire.sh
. "${0%/*}/../wire.sh"

# fails ERRNO PATTERN "KEY=VALUE..." STEP...: a client with these settings must
# fail against a server that takes these steps. ERRNO is that of "start", or OK
# if it fails later.
fails() {
	local errno=$1 pattern=$2 settings=$3 said=/tmp/peer begin
	shift 3
	rm -f "$said"
	nsenter --net=/run/netns/b bad_peer server "$SERVER" 18515 "$@" >"$said" 2>&1 &
	wait_for 5 [ -s "$said" ] || fail "the peer does not listen"
	# shellcheck disable=SC2086 # a list
	client timeout_ms=1000 count=1000 $settings || return
	begin=$SECONDS
	NS=a put c/start 1
	[ "$ERRNO" = "$errno" ] || fail "start: $ERRNO, not $errno"
	[ "$errno" = OK ] || [ ${#LINES[@]} -eq 1 ] || fail "${#LINES[@]} lines in the log"
	await_failed c 10
	[ $((SECONDS - begin)) -le 5 ] || fail "it took $((SECONDS - begin)) s"
	has_error c "$pattern"
	expect c sessions_failed=1
	[ "$FAILURES" -eq 0 ] || sed 's/^/the peer: /' "$said"
}

declare -A CASES
NAMES=()
# case_of NAME ERRNO PATTERN SETTINGS STEP...
case_of() {
	local name=$1
	shift
	CASES[$name]=$(printf '%q ' "$@")
	NAMES+=("a_server $name")
}
a_server() { eval "fails ${CASES[$1]}"; }

region() { fields "4:$1" "4:$2" "8:$3" 4:0x77 "4:$4"; }
fields 4:0x123 4:0x456 4:0x11111111
QP=$H
welcome
WELCOME=$H
UC="transport=uc"
accept=(accept "$WELCOME")
uc_ready=(accept "$WELCOME" await "$OPEN" send 0 "$OPENED" "$QP" send 0 "$READY" "")
rc_ready=(accept "$WELCOME" accept "" send 0 "$READY" "")

# Answers to the connect request.
printf -v H '%048d' 0
case_of welcome_of_zeros EPROTO "bad answer of the server" "" accept "$H" end
case_of welcome_empty EPROTO "bad answer of the server" "" accept "" end
welcome version=2
case_of welcome_version EPROTO "another version" "" accept "$H" end
welcome length=23
case_of welcome_length EPROTO "length" "" accept "$H" end
welcome timeout=0
case_of welcome_timeout EPROTO "impossible value" "" accept "$H" end
words=("" "did not understand" "another version" "as many sessions" "set up to refuse" "does not know the session" "does not suffice")
for code in 1 2 3 4 5 6; do
	refused $code
	case_of "refused_$code" ECONNREFUSED "${words[code]}" "" reject "$H"
done
refused 9
case_of refused_9 ECONNREFUSED "refused: " "" reject "$H"
case_of refused_without_words ECONNREFUSED "refused: " "" reject ""
case_of no_answer_at_all ETIMEDOUT "answer to the connect request took longer than" "" sleep 4000
case_of silent_after_accept ETIMEDOUT "silent for 1000 ms" "$UC" "${accept[@]}" sleep 4000
case_of no_answer_for_data ETIMEDOUT "silent for 1000 ms" "" "${accept[@]}" sleep 4000
refused 5
case_of data_refused ECONNREFUSED "does not know the session" "" "${accept[@]}" reject "$H" sleep 500
case_of ends_after_accept ECONNRESET "ended the connection" "$UC" "${accept[@]}" close sleep 500
case_of exits_after_accept ECONNRESET "ended the connection" "$UC" "${accept[@]}"

# Opening.
fields 4:0x1000000 4:0 4:0
case_of qp_number EPROTO "impossible value" "$UC" "${accept[@]}" await "$OPEN" send 0 "$OPENED" "$H" end
case_of ready_too_early EPROTO "" "op=write" "${accept[@]}" accept "" send 0 "$READY" "" end
case_of opened_on_rc EPROTO "" "" "${accept[@]}" accept "" send 0 "$OPENED" "$QP" end
case_of opened_of_connection_3 EPROTO "connection 3" "$UC" "${accept[@]}" await "$OPEN" send 3 "$OPENED" "$QP" end
region 0 1 4096 64
case_of region_for_send EPROTO "does not fit" "$UC" "${accept[@]}" await "$OPEN" send 0 "$OPENED" "$QP" send 0 "$REGION" "$H" end
region 0 5 4096 64
case_of region_slots EPROTO "does not fit" "op=write depth=4" "${accept[@]}" accept "" send 0 "$REGION" "$H" end
region 1 1 4096 64
case_of region_first EPROTO "does not fit" "op=write depth=4" "${accept[@]}" accept "" send 0 "$REGION" "$H" end
region 0 4 4096 128
case_of region_stride EPROTO "does not fit" "op=write depth=4" "${accept[@]}" accept "" send 0 "$REGION" "$H" end
region 0 4 -64 64
case_of region_beyond_memory EPROTO "does not fit" "op=write depth=4" "${accept[@]}" accept "" send 0 "$REGION" "$H" end
fields 8:1
case_of credit_before_ready EPROTO "before the load began" "$UC" "${accept[@]}" await "$OPEN" send 0 "$OPENED" "$QP" send 0 "$CREDIT" "$H" end

# Load.
region 0 4 4096 64
case_of rkey_of_nothing OK "connection 0 broke" "op=write depth=4" "${accept[@]}" accept "" send 0 "$REGION" "$H" send 0 "$READY" "" end
fields 8:0x100000000
case_of credit_too_much OK "credit for what was not sent" "" "${rc_ready[@]}" send 0 "$CREDIT" "$H" end
fields 8:-1
case_of credit_beyond OK "impossible value" "" "${rc_ready[@]}" send 0 "$CREDIT" "$H" end
fields 8:0 1:1
case_of checked_unasked OK "not asked for" "" "${rc_ready[@]}" send 0 "$CHECKED" "$H" end
fields 8:0 1:9
case_of checked_verdict OK "impossible value" "" "${rc_ready[@]}" send 0 "$CHECKED" "$H" end
fields 8:0 8:0 8:0 8:0
case_of finished_unasked OK "without being asked" "" "${rc_ready[@]}" send 0 "$FINISHED" "$H" end
fields 8:7 8:0 8:0 8:0
case_of finished_count OK "a count of messages" "count=3" "${rc_ready[@]}" await "$FINISH" send 0 "$FINISHED" "$H" end
case_of ready_twice OK "does not belong" "" "${rc_ready[@]}" send 0 "$READY" "" end
case_of open OK "does not belong" "$UC" "${uc_ready[@]}" send 0 "$OPEN" "$QP" end
fields 8:0 8:0
case_of finish OK "does not belong" "$UC" "${uc_ready[@]}" send 0 "$FINISH" "$H" end
case_of unknown_kind OK "impossible value" "$UC" "${uc_ready[@]}" send 0 77 "" end
case_of left_one_out OK "not the next message" "$UC" "${uc_ready[@]}" seq 1 send 0 1 "" end
case_of body_beyond OK "lies about its length" "$UC" "${uc_ready[@]}" len 65535 send 0 1 "" end
case_of short OK "lies about its length" "$UC" "${uc_ready[@]}" raw 01 end
printf -v H '%0130d' 0
case_of long OK "control connection broke" "$UC" "${uc_ready[@]}" raw "$H" end
case_of pong_of_another_length OK "another length" "op=send_ping" "${rc_ready[@]}" sleep 200 post 10 end
case_of pong_too_long OK "connection 0 broke" "op=send_ping" "${rc_ready[@]}" sleep 200 post 65 end
case_of silent_under_load OK "silent for 1000 ms" "$UC" "${uc_ready[@]}" sleep 4000
case_of never_finished OK "silent for 1000 ms" "count=3" "${rc_ready[@]}" await "$FINISH" sleep 4000
case_of ends_under_load OK "ended the connection" "$UC" "${uc_ready[@]}" sleep 300 close sleep 500
case_of exits_under_load OK "" "" "${rc_ready[@]}" sleep 300

# Answers of exchanges.
exchange=(accept "$WELCOME" accept "" await "$REGION" send 0 "$READY" "" sleep 200)
answer_to 0
ANSWER=$H
for op in exchange_out exchange_in; do
	answer_to 1
	case_of $op/of_the_next OK "not the next message" "op=$op" "${exchange[@]}" data "$H" end
	answer_to -1
	case_of $op/of_the_one_before OK "not the next message" "op=$op" "${exchange[@]}" data "$H" end
	answer_to 0 1
	case_of $op/zeros OK "impossible value" "op=$op" "${exchange[@]}" data "$H" end
	case_of $op/again OK "not the next message" "op=$op" "${exchange[@]}" data "$ANSWER" sleep 200 data "$ANSWER" end
	case_of $op/to_no_request OK "no request" "op=$op count=1" "${exchange[@]}" data "$ANSWER" data "$ANSWER" end
	case_of $op/shorter OK "kind or length" "op=$op" "${exchange[@]}" data "${ANSWER:2}" end
	case_of $op/empty OK "kind or length" "op=$op" "${exchange[@]}" post 0 end
	case_of $op/longer OK "connection 0 broke" "op=$op" "${exchange[@]}" post 17 end
	case_of $op/before_the_load EPROTO "before the load began" "op=$op" \
		accept "$WELCOME" accept "" await "$REGION" data "$ANSWER" end
	case_of $op/silent OK "silent for 1000 ms" "op=$op" "${exchange[@]}" sleep 4000
	case_of $op/exits OK "" "op=$op depth=8" "${exchange[@]}" sleep 300
done

# An answer whose data never came.
answer_without_data() {
	local said=/tmp/peer
	rm -f "$said"
	fields 8:1 8:0 8:0 8:0
	nsenter --net=/run/netns/b bad_peer server "$SERVER" 18515 "${exchange[@]}" data "$ANSWER" \
		await "$FINISH" send 0 "$FINISHED" "$H" end >"$said" 2>&1 &
	wait_for 5 [ -s "$said" ] || fail "the peer does not listen"
	client op=exchange_out verify=1 count=1 && start c a && await_done c && expect c ops=1 miscompares=1
}

# What the server counts is taken over; it is no lie that can be seen.
wrong_payloads() {
	local said=/tmp/peer
	rm -f "$said"
	fields 8:3 8:2 8:0 8:0
	nsenter --net=/run/netns/b bad_peer server "$SERVER" 18515 "${rc_ready[@]}" \
		await "$FINISH" send 0 "$FINISHED" "$H" end >"$said" 2>&1 &
	wait_for 5 [ -s "$said" ] || fail "the peer does not listen"
	client count=3 && start c a && await_done c && expect c ops=3 miscompares=2
}

tests "${NAMES[@]}" wrong_payloads answer_without_data
