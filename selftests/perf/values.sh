#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What is written to an attribute: a bad value gives an errno and one line in
# the log that says what is allowed, and leaves the old value.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

LONG=$(printf 'x%.0s' {1..4095})
DIGITS=${LONG//x/9}

# write_all ATTRIBUTE VALUE...: calls "wrote" after each, which finds ERRNO, LINES, V
# (what the attribute shows now) and VALUE.
write_all() {
	local attribute=$1 line
	shift
	ERRNO="" LINES=()
	while IFS= read -r line; do
		case $line in
		"now "*)
			V=${line#now } VALUE=$1
			wrote "$attribute"
			ERRNO="" LINES=()
			shift
			;;
		*) [ -n "$ERRNO" ] && LINES+=("$line") || ERRNO=$line ;;
		esac
	done < <(attr_write -v "$C/e/$attribute" "$@")
	[ $# -eq 0 ] || fail "$attribute: $# values are left"
}

# bad ATTRIBUTE ERRNO VALUE...
bad() {
	local errno=$2 old
	get e "$1"
	old=$V
	wrote() {
		VALUE=${VALUE:0:20}
		[ "$ERRNO" = "$errno" ] || fail "${VALUE@Q}: $ERRNO, not $errno"
		[ ${#LINES[@]} -eq 1 ] || fail "${VALUE@Q}: ${#LINES[@]} lines in the log"
		[[ ${LINES[0]-} == "rivet: perf/e: $1: "*"allowed: "* ]] || fail "${VALUE@Q}: log: ${LINES[0]-}"
		[ ${#LINES[0]} -le 300 ] || fail "${VALUE@Q}: a line of ${#LINES[0]} characters"
		[ "$V" = "$old" ] || fail "${VALUE@Q}: '$old' has become '$V'"
	}
	write_all "$1" "${@:3}"
}

# good ATTRIBUTE VALUE...: taken as they are, with a newline or without.
good() {
	local values=() value
	wrote() {
		[ "$ERRNO" = OK ] && [ ${#LINES[@]} -eq 0 ] || fail "$1: ${VALUE@Q}: $ERRNO ${LINES[*]}"
		[ "$V" = "${VALUE%$'\n'}" ] || fail "$1: ${VALUE@Q} is shown as '$V'"
	}
	for value in "${@:2}"; do values+=("$value" "$value"$'\n'); done
	write_all "$1" "${values[@]}"
}

# No value of any attribute.
nonsense() {
	bad "$1" EINVAL garbage $'\n' "$LONG" -1 $'\xff\xfe' $'1\xc3\xa9' "   " "1 " " 1" "1 2" \
		$'1\n\n' $'1\n2' $'\t1' 0x10 1e3 +1 1.0 '%s%n'
	# Not a word, whatever its beginning is.
	get e "$1"
	old=$V
	put "e/$1" < <(printf '1\0')
	[ "$ERRNO" = EINVAL ] && [ ${#LINES[@]} -eq 1 ] || fail "a zero byte: $ERRNO, ${#LINES[@]} lines"
	get e "$1"
	[ "$V" = "$old" ] || fail "a zero byte: '$old' has become '$V'"
	# An empty write writes nothing.
	put "e/$1" ""
	get e "$1"
	[ "$V" = "$old" ] || fail "nothing: '$old' has become '$V'"
}

# number ATTRIBUTE FIRST LAST
number() {
	make e && nonsense "$1" || return
	good "$1" "$2" "$3"
	[ "$2" = 0 ] || [ "$1" = duration_ms ] || bad "$1" ERANGE 0 $(($2 - 1))
	bad "$1" ERANGE $(($3 + 1)) 18446744073709551615 18446744073709551616 "$DIGITS"
	good "$1" $((($2 + $3) / 2))
	bad "$1" ERANGE $(($3 + 1))
}

# No duration and no count: the default.
no_duration() {
	make e count=5 && put e/duration_ms 0
	[ "$ERRNO" = OK ] || fail "duration_ms: 0: $ERRNO"
	get e duration_ms
	[ "$V" = 1000 ] || fail "duration_ms is $V"
	get e count
	[ "$V" = 0 ] || fail "count is $V"
}

# word ATTRIBUTE WORD...
word() {
	make e && nonsense "$1" || return
	bad "$1" EINVAL 0 1 "$2x" "$2 $2" "${2^^}" "${2:0:-1}"
	good "$@"
	bad "$1" EINVAL nothing
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
	good device "${LONG:0:63}" rxea any
	bad device EINVAL $'\n'
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
		connections=1 count=0 duration_ms=1000 timeout_ms=5000 verify=0 completion=interrupt state=idle; do
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
	"word op send send_imm write write_imm read fetch_add cmp_swap send_ping write_ping" \
	"word completion interrupt busy" "number port 1 65535" "number size 1 1048576" "number sges 1 32" \
	"number depth 1 1024" "number connections 1 256" "number count 0 281474976710656" \
	"number duration_ms 1 86400000" no_duration "number timeout_ms 100 60000" "number verify 0 1" \
	address device "trigger start" "trigger stop" read_only names
