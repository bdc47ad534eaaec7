#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Targets that do what they should not with the memory that they are given, and with
# the keys to it.

# shellcheck source=selftests/nvme/hostile.sh
. "${0%/*}/hostile.sh"

# kept TEST...: the same, where regions stay registered.
kept() {
	by_policy memory=cached copy_threshold=0 || fail "no policy"
	"$@"
}

# invalidated [TEST...]: a key that was to stay.
invalidated() {
	"$@"
	dmesg | grep -q "an invalidation of key .*, which is no command's" || fail "the log does not say what was invalidated"
}

# shows LENGTH RULE: what a read finds in the user's memory that the target says it
# has written, and has not: nothing of the kernel, and nothing of an earlier read.
shows() {
	local length=$1 value count
	shift
	RULES=$*
	against "$@"
	connect_bad || { fail "connect: $SAID" && return; }
	wait_for 20 find_disk "$BADNQN" || { fail "no disk" && return; }
	# Secrets, which pass through whatever buffers there are.
	tr '\0' '\151' </dev/zero | dd of="$DISK" bs=64k count=32 oflag=direct iflag=fullblock status=none || fail "dd"
	dd if="$DISK" of=/dev/null bs="$length" count=$((2097152 / length < 200 ? 2097152 / length : 200)) iflag=direct status=none || fail "dd"
	while read -r value count; do
		case $value in
		00 | a5) ;;
		69) [[ $* == *half-data* && $count -le $((length / 2)) ]] || fail "$count bytes are of an earlier read" ;;
		*) fail "$count bytes are $value" ;;
		esac
	done < <(vectors reads "$DISK" 0 "$length" 2>/tmp/lied || echo "ff $(</tmp/lied)")
	did "$@"
	quiet
	honest
}

# other_key: the key of another controller's memory is invalidated.
other_key() {
	local first
	RULES="inv-other"
	against "read#20:inv-other"
	connect_bad || { fail "connect: $SAID" && return; }
	wait_for 20 find_disk "$BADNQN" && first=$DISK || { fail "no disk" && return; }
	# shellcheck disable=SC2086 # words
	connect_to $BADNQN:2 $AT_FIRST $SOON || { fail "connect: $SAID" && return; }
	wait_for 20 find_disk "$BADNQN:2" || { fail "no second disk" && return; }
	dd if="$DISK" of=/dev/null bs=16k count=30 iflag=direct status=none 2>/dev/null &
	STATUS=0
	timeout $((90 * SLOWER)) dd if="$first" of=/dev/null bs=16k count=30 iflag=direct status=none 2>/tmp/lied || STATUS=$?
	[ "$STATUS" -ne 124 ] || fail "the read hangs"
	wait_for 60 settled || fail "it does not settle: $(cat /sys/class/nvme/nvme*/state)"
	did "read#20:inv-other"
	quiet
	honest
}

# late: after the answer the memory is not the target's any more.
late() {
	reads "read#30:late=200"
	! grep -qx "late: it was written" "$BAD_SAID" || fail "the target writes to memory after its answer"
}

# wrong_way: memory that is to be read only.
wrong_way() {
	not_for_rdma "it lets the target write to what it should read"
	writes "write#5:wrong-way"
	grep -q "^wrong way: " "$BAD_SAID" || fail "the target writes to what it should read"
}

nvme_tests "shows 512 read:no-data" "shows 4096 read:no-data" "shows 65536 read:no-data" "shows 65536 read:half-data" \
	late wrong_way "reads read#30:beyond=512" "reads read#30:inv=0x1234" "reads read#30:inv-last" "small write#30:inv=0x1234" \
	other_key "deep read#20:inv-last" "kept shows 4096 read:no-data" "kept shows 65536 read:half-data" "kept wrong_way" \
	"kept invalidated reads read#30:inv-own" "kept invalidated writes write#30:inv-own" "kept reads read#30:beyond=512" \
	"kept other_key" "kept deep read#20:inv-own"
