#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What submitters and buffers can be set to, and the loads that are refused
# with them.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"
# shellcheck source=selftests/values.sh
. "${0%/*}/../values.sh"

E=c
subject() { make c; }

# refused ERRNO WORDS KEY=VALUE...: such a client does not start, and nothing of it is left;
# WORDS, with "+" for blanks, are in the log's only line.
refused() {
	client op=read "${@:3}" && NS=a put c/start 1
	[ "$ERRNO" = "$1" ] || fail "start: $ERRNO, not $1"
	[ ${#LINES[@]} -eq 1 ] || fail "${#LINES[@]} lines in the log: ${LINES[*]}"
	[[ ${LINES[0]-} == *"${2//+/ }"* ]] || fail "the log says '${LINES[0]-}'"
	[ ${#LINES[0]} -le 300 ] || fail "a line of ${#LINES[0]} characters"
	state_is c running && fail "it runs"
	objects_are "$OBJECTS" || fail "something is left: $(objects)"
	rmdir "$C"/c
	client op=read verify=1 submitters=2 depth=2 count=10 && start c a && await_done c && expect c ops=10 miscompares=0
}

# by_policy KNOB=VALUE[,KNOB=VALUE] ERRNO WORDS KEY=VALUE...
by_policy() {
	# shellcheck disable=SC2086 # words
	policy p ${1//,/ } && refused "${@:2}" policy=p
}

# busy ATTRIBUTE: cannot be changed while the end runs.
while_running() {
	client op=read submitters=2 duration_ms=60000 && start c a || return
	for attribute in submitters buffers; do
		put "c/$attribute" 3
		[ "$ERRNO" = EBUSY ] && [ ${#LINES[@]} -eq 1 ] || fail "$attribute: $ERRNO, ${#LINES[@]} lines"
	done
	state_is c running || fail "the client is $V"
	# And can, to none, when it does not.
	put c/stop 1
	echo 0 >"$C"/c/submitters
	echo send >"$C"/c/op
	echo 10 >"$C"/c/count
	start c a && await_done c && expect c ops=10
}

# servers ATTRIBUTE: it is the client's choice.
servers() {
	make s2 role=server address="$SERVER" port=7000 "$1=2" && NS=b put s2/start 1
	[ "$ERRNO" = EINVAL ] && [ ${#LINES[@]} -eq 1 ] || fail "start: $ERRNO, ${#LINES[@]} lines"
	[[ ${LINES[0]-} == *"client's choice"* ]] || fail "the log says '${LINES[0]-}'"
}

# A server's limits are for each lane's connection, and it refuses in words.
limits() {
	server s2 port=7000 connections=2 depth=4 || return
	policy p lanes=3 && client op=read port=7000 submitters=3 policy=p && NS=a put c/start 1
	[ "$ERRNO" = ECONNREFUSED ] || fail "3 lanes: $ERRNO"
	has_error c "set up to refuse"
	echo 2 >"$P"/p/lanes
	echo 10 >"$C"/c/count
	start c a && await_done c && expect c ops=10
}

# shellcheck disable=SC2119 # without settings
keep_server
tests "number submitters 0 64" "number buffers 0 4096" \
	"refused EOPNOTSUPP submitters:+only+for+op+send submitters=1 op=fetch_add" \
	"refused EOPNOTSUPP submitters:+only+for+op+send submitters=64 op=send_ping" \
	"refused EOPNOTSUPP submitters:+only+for+op+send submitters=1 op=exchange_out" \
	"refused EOPNOTSUPP submitters:+only+for+op+send submitters=4 op=exchange_in" \
	"refused EINVAL transport+does+not+carry submitters=1 transport=uc" \
	"refused EOPNOTSUPP submitters:+only+for+op+send submitters=1 op=write transport=uc" \
	"refused E2BIG connections:+256+of+2+lanes+each+are+512+QPs submitters=1 connections=256" \
	"refused EOPNOTSUPP submitters:+only+for+op+send submitters=2 sges=2" \
	"refused EINVAL buffers:+only+with+submitters buffers=2" \
	"refused EINVAL up+to+8+operations+under+way submitters=4 depth=4 buffers=7" \
	"by_policy lanes=1 EINVAL up+to+64+operations+under+way submitters=64 buffers=63" \
	"by_policy lanes=1 E2BIG depth:+the+lane's+submitters+need submitters=64 depth=1024" \
	"refused ENOMEM buffers:+the+lanes+need submitters=2 size=1048576 buffers=4096" \
	"by_policy memory=cached,mr_cache_entries=1 ENOSPC mr_cache_entries:+this+load+needs submitters=1" \
	while_running "servers submitters" "servers buffers" limits
