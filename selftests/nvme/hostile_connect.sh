#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Targets that lie, fall silent or go away while a host connects.

# shellcheck source=selftests/nvme/hostile.sh
. "${0%/*}/hostile.sh"

# stages ACTION STAGE...: the same at each of these.
stages() {
	local action=$1 stage
	shift
	for stage; do survives "$stage#1:$action"; done
}

# no_answer STAGE...: of the CM, which asks again and again by itself.
no_answer() {
	PATIENCE=200
	stages silence "$@"
}

rejects() {
	local status
	for status in 0 1 2 3 4 5 6 7 8 9 65535; do
		RULES="reject=$status"
		against "request:reject=$status"
		! connect_bad || fail "it connects"
		did "request:reject=$status"
		no_ctrls || fail "a controller is left"
		quiet
		kill -KILL "$BAD"
		wait "$BAD" 2>/dev/null
	done
	survives request:bare
}

# one_of RULE SECONDS: of four queues that are connected at once, one fails. The others go with it, soon, and
# the log has one reason.
one_of() {
	local begin=$SECONDS SOON=${SOON/--nr-io-queues=1/--nr-io-queues=2 --nr-write-queues=2}
	needs_rivet
	RULES=$1
	against "$1"
	# Where a command was ended by us, nvme tries again, and the target does as it should then.
	if connect_bad; then
		dmesg | grep -q "rivet: .*not connected: error -4$" || fail "it connects"
		nvme disconnect -n "$BADNQN" >/dev/null
	fi
	[ $((SECONDS - begin)) -lt $(($2 * SLOWER)) ] || fail "that takes $((SECONDS - begin)) s"
	did "$1"
	wait_for 10 no_ctrls || fail "a controller is left"
	[ "$(dmesg | grep -cE 'rivet: nvme[0-9]*: [^ ]*: not connected')" = 1 ] || fail "it does not say once that it is not connected"
	[ "$(dmesg | grep -cE 'rivet: nvme[0-9]*: queue [0-9]*: (connecting|the co)')" -le 1 ] || fail "more than one queue says why"
	quiet
	honest
}

nvme_tests "one_of io-request#1:reject=6 5" "one_of io-request#3:silence 15" "one_of io-ready#2:vanish 8" \
	"one_of io-connect#3:status=0x182 5" "one_of io-connect#1:silence 10" "one_of io-connect#4:vanish 8" \
	"stages vanish ready io-ready connect io-connect get-cap set get-csts identify features identify-ns" \
	"stages silence connect io-connect get-cap get-csts identify features" \
	rejects "stages reject=6 io-request" "no_answer request"
