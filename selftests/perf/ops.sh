#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Every operation on every transport that carries it, by policies with both ways
# of waiting for completions, each payload checked.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# op TRANSPORT OP POLICY
op() {
	local count=120 depth=4 size=777
	case $2 in
	*_ping) depth=1 ;;
	fetch_add | cmp_swap) size=8 ;;
	esac
	server policy="$3" || return
	run_load "$count" transport="$1" op="$2" policy="$3" size="$size" depth="$depth"
	expect s ops="$count" bytes=$((count * size)) errors=0 miscompares=0 lost=0 \
		sessions=1 sessions_failed=0 refused=0
}

list=()
for policy in interrupt latency; do
	# Who sleeps cannot see that memory was written.
	write_ping=write_ping
	[ $policy != interrupt ] || write_ping=
	for op in send send_imm write write_imm read fetch_add cmp_swap send_ping $write_ping \
		exchange_out exchange_in; do
		list+=("op rc $op $policy")
	done
	for op in send send_imm write write_imm send_ping $write_ping; do
		list+=("op uc $op $policy")
	done
	for op in send send_imm send_ping; do
		list+=("op ud $op $policy")
	done
done
tests "${list[@]}"
