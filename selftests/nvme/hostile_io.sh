#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Targets that lie in their answers to reads and writes.

# shellcheck source=selftests/nvme/hostile.sh
. "${0%/*}/hostile.sh"

# keepalive: only that is not answered.
keepalive() {
	RULES=keepalive#1:silence
	against "$RULES"
	connect_bad || { fail "connect: $SAID" && return; }
	wait_for 20 grep -qxF "did $RULES" "$BAD_SAID" || fail "there is no keep-alive"
	wait_for 30 recovers || fail "the host does not mind"
	wait_for 60 settled || fail "it does not settle: $(cat /sys/class/nvme/nvme*/state)"
	quiet
	honest
}
# recovers: it has connected a second time, or given up.
recovers() { no_ctrls || [ "$(grep -cx "connected 0" "$BAD_SAID")" -ge 2 ]; }

nvme_tests "reads read#30:cid=100" "reads read#30:cid=0x0fff" "reads read#30:cid=0xffff" "reads read#30:again" \
	"reads read#30:twice" "small write#30:twice" "writes write#30:again" "deep read#20:twice" "deep read#20:hold" \
	"reads read#30:length=0" "reads read#30:length=8" "reads read#30:length=15" "reads read#30:length=32" \
	"reads read#30:silence" "writes write#30:silence" "reads read#30:vanish" "reads read#30:vanish-all" \
	"reads read#30:delay=1000" "reads read#30:status=0x281" keepalive "deep aer#1:flood=2000" "deep read#10:flood=300"
