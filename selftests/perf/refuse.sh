#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Clients that are not let in: nobody listens, or the server was set up to
# refuse what they ask for.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

# refused WORDS: the client c is, and says so in these words.
refused() {
	NS=a put c/start 1
	[ "$ERRNO" = ECONNREFUSED ] || fail "start: $ERRNO"
	[ ${#LINES[@]} -eq 1 ] || fail "${#LINES[@]} lines in the log"
	state_is c failed || fail "the state is $V"
	has_error c "$1"
	expect c ops=0 sessions_failed=1
}

nobody_listens() {
	client && refused "refused: "
	server port=7000 && refused "refused: "
	expect s refused=0 sessions=0
}

# limit SERVER'S ALLOWED FORBIDDEN: three settings, one for the server.
limit() {
	server "$1" || return
	run_load 10 "$2"
	client "$3" && refused "set up to refuse such a load: ${1%%=*}: allowed: *${1#*=}"
	expect s refused=1 sessions=1 sessions_failed=0 ops=10
	serves_again "$2"
}
serves_again() { rmdir "$C"/c && run_load 10 "$1"; }

# server_sleeps COMPLETION: a server that must not poll does not take write_ping.
server_sleeps() {
	policy p completion="$1" && server policy=p || return
	client op=write_ping && refused "write_ping polls memory"
	expect s refused=1 sessions=0
	serves_again op=write
	# What is set counts at once.
	echo busy >"$P"/p/completion
	run_load 10 op=write_ping
}

tests nobody_listens "limit size=1000 size=1000 size=1001" "limit op=write op=write op=send" \
	"limit transport=uc transport=uc transport=rc" "limit depth=4 depth=4 depth=5" \
	"limit connections=2 connections=2 connections=3" \
	"server_sleeps interrupt" "server_sleeps coalesce"
