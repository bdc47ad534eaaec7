# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# For the tests in selftests/faults: allocations fail that have rivet's code among
# their callers, and no others.

# shellcheck source=selftests/lib.sh
. "${BASH_SOURCE[0]%/*}/lib.sh"

FAULTS="/sys/kernel/debug/failslab /sys/kernel/debug/fail_page_alloc"

# injects: whether the kernel can.
injects() {
	local dir
	[ -w /proc/self/fail-nth ] || return
	for dir in $FAULTS; do [ -w "$dir/require-start" ] || return; done
}
can_inject() { injects || skip "the kernel has no fault injection with a filter for stacks"; }

# set_faults FILE VALUE: for slab and pages.
set_faults() {
	local dir
	for dir in $FAULTS; do echo "$2" >"$dir/$1" || fail "$dir/$1: $2 was refused"; done
}

# filter: only what rivet asks for, directly or not.
filter() {
	local ends
	ends=$(awk '$4 == "[rivet]" && $2 ~ /[tT]/ { print $1 }' /proc/kallsyms | sort | sed -n '1p;$p')
	set_faults probability 0
	set_faults verbose 0
	set_faults times -1
	set_faults ignore-gfp-wait N
	echo N >/sys/kernel/debug/fail_page_alloc/ignore-gfp-highmem
	echo 0 >/sys/kernel/debug/fail_page_alloc/min-order
	set_faults stacktrace-depth 32
	set_faults require-start "0x${ends%%$'\n'*}"
	# The last function has some length, too.
	set_faults require-end "$(printf '0x%x' $((0x${ends##*$'\n'} + 4096)))"
}

# no_faults: and no filter, either.
no_faults() {
	injects || return 0
	set_faults probability 0
	set_faults require-start 0
	set_faults require-end 0xffffffffffffffff
	set_faults stacktrace-depth 0
}

# each_site ARGUMENT...: of fail_nth. Every fault ends in ENOMEM or in success.
each_site() {
	local said word rc=0
	said=$(fail_nth "$@" 2>&1) || rc=$?
	progress "$*: $said"
	[ "$rc" -eq 0 ] || fail "$*: $said"
	for word in ${said#*sites:}; do
		[[ $word != E* || $word = ENOMEM ]] || fail "$*: $word"
	done
}
