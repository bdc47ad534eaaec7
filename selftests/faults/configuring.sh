#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Allocations that fail in the task that configures, each one in its turn: making
# ends and policies, every attribute, start and stop. Each ends in an errno or in
# success, nothing is left, and the same succeeds after that.

# shellcheck source=selftests/inject.sh
. "${0%/*}/../inject.sh"

# all_attributes DIR: each file of it is read, and written what it says.
all_attributes() {
	local file value
	for file in "$1"/*; do
		[[ $file != */start && $file != */stop ]] || continue
		each_site read "$file"
		read -r value <"$file" || :
		# Of the two goals, writing one unsets the other.
		case ${file##*/} in
		state | error | result | histogram | stats | users | count | duration_ms) ;;
		*) each_site write "$file" "$value" ;;
		esac
	done
}

ends() {
	can_inject
	filter
	each_site mkdir "$C"/c
	each_site write "$C"/c/role client
	each_site write "$C"/c/address fd77::2
	each_site write "$C"/c/address "$SERVER"
	each_site write "$C"/c/count 5
	each_site write "$C"/c/duration_ms 1000
	all_attributes "$C"/c
}

policies() {
	can_inject
	filter
	each_site mkdir "$P"/p
	each_site write "$P"/p/cpus 0-1
	all_attributes "$P"/p
	# Some knobs are live: they reach connections in this write.
	server && client op=read submitters=2 depth=4 duration_ms=600000 policy=p && start c a || return
	all_attributes "$P"/p
	each_site write "$P"/p/completion coalesce
	each_site write "$P"/p/completion adaptive
	state_is c running || fail "the client is $V: $(<"$C"/c/error)"
}

# starts KEY=VALUE...: of a server and a client, of which each is stopped again when
# it runs in spite of a fault.
starts() {
	can_inject
	filter
	make s role=server address="$SERVER" || return
	each_site -n b -u "$C/s/stop=1" write "$C"/s/start 1
	policy p memory="${1#*=}" && shift
	client duration_ms=600000 timeout_ms=2000 policy=p "$@" || return
	# A server that refuses, because of a fault of its own, is a reason, too.
	each_site -n a -u "$C/c/stop=1" write "$C"/c/start 1
	state_is c running || fail "the client is $V: $(<"$C"/c/error)"
	each_site read "$C"/c/result
	each_site read "$C"/c/histogram
	each_site read "$C"/c/stats
	NS=a put c/stop 1
	[ "$ERRNO" = OK ] || fail "stop: $ERRNO"
	expect c errors=0 miscompares=0
	rmdir "$C"/c
	serves
}

# stops: the task that stops ends what runs.
stops() {
	can_inject
	filter
	server && client op=read submitters=2 depth=4 duration_ms=600000 timeout_ms=2000 && start c a || return
	each_site -n a -u "$C/c/start=1" write "$C"/c/stop 1
	state_is c "done" || fail "the client is $V: $(<"$C"/c/error)"
	each_site -n b -u "$C/s/start=1" write "$C"/s/stop 1
}

restore() { no_faults; }

tests ends policies "starts memory=auto op=send verify=1" \
	"starts memory=register op=write connections=2 depth=4 size=10000" \
	"starts memory=cached op=read submitters=2 depth=4 size=20000" \
	"starts memory=fast op=exchange_out depth=2 size=20000" \
	"starts memory=copy op=send transport=ud depth=2" stops
