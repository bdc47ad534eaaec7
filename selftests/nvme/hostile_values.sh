#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Targets that say nonsense while a host connects.

# shellcheck source=selftests/nvme/hostile.sh
. "${0%/*}/hostile.sh"

# early CID: a completion on the admin queue before there was a command.
early() {
	not_for_rdma "it looks for the request in tags that it has not made yet"
	survives "ready#1:unsolicited=$1"
}

# metadata: a namespace with T10-PI, which the kernel's own target has only on devices that can check
# it: there is no disk that could be used, and the log says why, once.
metadata() {
	needs_rivet
	local line="rivet: .*: namespace 1 has 8 bytes of metadata"
	RULES="identify-ns:poke=128/4/0x00090008"
	against "$RULES"
	connect_bad || { fail "connect: $SAID" && return; }
	wait_for 20 logged "$line" || fail "it does not say why"
	nvme ns-rescan "/dev/$CTRL" || fail "rescan"
	nap 1
	[ "$(dmesg | grep -c "$line")" = 1 ] || fail "it says so $(dmesg | grep -c "$line") times"
	! find_disk "$BADNQN" || [ "$(cat "/sys/block/${DISK#/dev/}/size")" = 0 ] || fail "there is a disk of $(cat "/sys/block/${DISK#/dev/}/size") sectors"
	did "$RULES"
	quiet
	honest
}
logged() { dmesg | grep -q "$1"; }

nvme_tests metadata "early 0" "early 0xffff" "survives io-ready#1:unsolicited=0" "survives io-connect#1:twice" \
	"survives request:recfmt=1" "survives request:empty" "survives request:crqsize=0" \
	"survives io-request:crqsize=0" "survives io-request:crqsize=1" "survives io-request:crqsize=65535" \
	"survives connect#1:status=0x182" "survives connect#1:value=0xffffffffffffffff" \
	"survives connect#1:cid=0x7fff" "survives connect#1:length=8" "survives connect#1:length=0" "survives connect#1:length=64" \
	"survives get-cap:value=0" "survives get-cap:value=0xffffffffffffffff" "survives get-csts:value=0" "survives get-csts:value=2" \
	"survives identify:no-data" "survives identify:half-data" "survives identify:poke=1792/4/0" "survives identify:poke=1792/4/5" \
	"survives identify:poke=1792/4/0xffffffff" "survives identify:poke=536/4/0" "survives identify:poke=1800/2/1" \
	"survives identify:poke=514/2/0" "survives identify:poke=514/2/1" "survives identify:poke=516/4/0xffffffff" \
	"survives features:value=0" "survives features:value=0xffffffff" "survives identify-ns#1:no-data" \
	"survives aer#1:flood=500"
