#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What is written to an attribute: a bad value gives an errno and one line in
# the log that says what is allowed, and leaves the old value.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"
# shellcheck source=selftests/values.sh
. "${0%/*}/../values.sh"

E=e
subject() { make e; }

# No duration and no count: the default.
no_duration() {
	make e count=5 && put e/duration_ms 0
	[ "$ERRNO" = OK ] || fail "duration_ms: 0: $ERRNO"
	get e duration_ms
	[ "$V" = 1000 ] || fail "duration_ms is $V"
	get e count
	[ "$V" = 0 ] || fail "count is $V"
}

address() {
	make e && nonsense address || return
	bad address EINVAL 10.77.0 10.77.0.256 10.77.0.2.3 10.77.0.2:18515 10.77.0.2/24 localhost fd77:::2 \
		fd77::g '[fd77::2]' fd77::1::2 "${LONG:0:64}" fe80::1%nothing
	good address 10.77.0.2 fd77::2 ::1 0.0.0.0 255.255.255.255
	bad address EINVAL 10.77.0
}

device() {
	make e || return
	bad device EINVAL $'\n' "$LONG" $'\xff\xfe' $'rxe\n\n' "${LONG:0:64}"
	good device "${LONG:0:63}" "$DEV_A" any
	bad device EINVAL $'\n'
}

policy_name() {
	make e || return
	bad policy EINVAL $'\n' "$LONG" $'\xff\xfe' "   " "default " " default" 'a b' 'a,b' a/b \
		$'default\n\n' $'default\nnaive' '%s%n' "${LONG:0:64}"
	bad policy ENOENT garbage -1 0x10 0 1 Default defaul default2 .. "${LONG:0:63}"
	good policy naive default latency throughput
	mkdir "$P/of-our-own_1.0" && good policy of-our-own_1.0
	# As long as it is not started it does not hold it.
	rmdir "$P/of-our-own_1.0" && bad policy ENOENT of-our-own_1.0
}

# trigger ATTRIBUTE: start and stop take 1 only.
trigger() {
	make e role=client || return
	bad "$1" EINVAL garbage $'\n' "$LONG" -1 $'\xff\xfe' "   " "1 " $'1\n\n' yes
	bad "$1" ERANGE 0 2 18446744073709551616
	state_is e idle || fail "the state is $V"
}

read_only() {
	make e || return
	for attribute in state error result histogram; do
		put "e/$attribute" 1
		[ "$ERRNO" = EACCES ] || fail "$attribute: $ERRNO"
	done
}

# What an end shows that nothing was set on.
defaults() {
	local pair
	make e role=client || return
	for pair in address=unset port=18515 device=any transport=rc op=send size=64 sges=1 depth=1 \
		connections=1 count=0 duration_ms=1000 timeout_ms=5000 verify=0 policy=default state=idle; do
		get e "${pair%=*}"
		[ "$V" = "${pair#*=}" ] || fail "${pair%=*} is '$V', not '${pair#*=}'"
	done
	echo server >"$C"/e/role
	for attribute in transport op size depth connections; do
		get e "$attribute"
		[ "$V" = any ] || fail "a server's $attribute is '$V'"
	done
}

# Names of ends: the file system's rules are the only ones, and the log stays
# readable.
names() {
	local name
	for name in 'a b' '%s%n%d' . .. $'\xff\xfe' $'two\nlines' ü "${LONG:0:200}" "${LONG:0:255}" "${LONG:0:256}" \
		-rf "'" 'a:b' $'\e[31m'; do
		case $name in
		. | ..) mkdir "$C/$name" 2>/dev/null && fail "${name@Q} was made" && continue ;;
		"${LONG:0:256}") mkdir "$C/$name" 2>/dev/null && fail "256 characters were taken" && continue ;;
		esac
		[ -d "$C/$name" ] || mkdir -- "$C/$name" 2>/dev/null || continue
		[ "$name" != . ] && [ "$name" != .. ] || continue
		echo "${name:0:20}" | cat -v
		NAMED=$name && named
		rmdir "$C/$name" || fail "${name@Q} cannot be removed"
	done
	make c && mkdir "$C/c" 2>/dev/null && fail "the same name twice"
	mkdir "$C/c/below" 2>/dev/null && fail "a directory below an end"
	rmdir "$C/c/result" 2>/dev/null && fail "an attribute was removed"
	return 0
}
named() {
	local all
	mapfile -t all < <(attr_write "$C/$NAMED/size" nothing)
	[ "${all[0]}" = EINVAL ] || fail "size: ${all[0]}"
	[ ${#all[@]} -eq 2 ] || fail "$((${#all[@]} - 1)) lines in the log"
	[[ ${all[1]} == *": size: 'nothing' is not allowed"* ]] || fail "log: ${all[1]}"
	[[ ${all[1]} =~ ^[[:print:]]*$ ]] || fail "log: unprintable: ${all[1]@Q}"
}

tests defaults "word role server client" "word transport rc uc ud" \
	"word op send send_imm write write_imm read fetch_add cmp_swap send_ping write_ping exchange_out exchange_in capsule_read" \
	policy_name "number port 1 65535" "number size 1 1048576" "number sges 1 32" \
	"number depth 1 1024" "number connections 1 256" "number count 0 281474976710656" \
	"number duration_ms 1 86400000" no_duration "number timeout_ms 100 60000" "number verify 0 1" \
	address device "trigger start" "trigger stop" read_only names
