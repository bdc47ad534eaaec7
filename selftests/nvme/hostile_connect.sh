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

nvme_tests "stages vanish ready io-ready connect io-connect get-cap set get-csts identify features identify-ns" \
	"stages silence connect io-connect get-cap get-csts identify features" \
	rejects "stages reject=6 io-request" "no_answer request"
