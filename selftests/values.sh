# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# For tests of what is written to attributes, beside lib.sh. The script says
# where: $E is the directory (as "at" has it), which "subject" makes.

LONG=$(printf 'x%.0s' {1..4095})
DIGITS=${LONG//x/9}

# write_all ATTRIBUTE VALUE...: calls "wrote" after each, which finds ERRNO, LINES, V
# (what the attribute shows now) and VALUE.
write_all() {
	local attribute=$1 line
	shift
	at "$E"
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
	done < <(attr_write -v "$A/$attribute" "$@")
	[ $# -eq 0 ] || fail "$attribute: $# values are left"
}

# bad ATTRIBUTE ERRNO VALUE...
bad() {
	local errno=$2 old
	get "$E" "$1"
	old=$V
	wrote() {
		VALUE=${VALUE:0:20}
		[ "$ERRNO" = "$errno" ] || fail "${VALUE@Q}: $ERRNO, not $errno"
		[ ${#LINES[@]} -eq 1 ] || fail "${VALUE@Q}: ${#LINES[@]} lines in the log"
		[[ ${LINES[0]-} == "rivet: ${A#"$RIVET"/}: $1: "*"allowed: "* ]] || fail "${VALUE@Q}: log: ${LINES[0]-}"
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
	get "$E" "$1"
	old=$V
	put "$E/$1" < <(printf '1\0')
	[ "$ERRNO" = EINVAL ] && [ ${#LINES[@]} -eq 1 ] || fail "a zero byte: $ERRNO, ${#LINES[@]} lines"
	get "$E" "$1"
	[ "$V" = "$old" ] || fail "a zero byte: '$old' has become '$V'"
	# An empty write writes nothing.
	put "$E/$1" ""
	get "$E" "$1"
	[ "$V" = "$old" ] || fail "nothing: '$old' has become '$V'"
}

# number ATTRIBUTE FIRST LAST
number() {
	subject && nonsense "$1" || return
	good "$1" "$2" "$3"
	[ "$2" = 0 ] || [ "$1" = duration_ms ] || bad "$1" ERANGE 0 $(($2 - 1))
	bad "$1" ERANGE $(($3 + 1)) 18446744073709551615 18446744073709551616 "$DIGITS"
	good "$1" $((($2 + $3) / 2))
	bad "$1" ERANGE $(($3 + 1))
}

# word ATTRIBUTE WORD...
word() {
	subject && nonsense "$1" || return
	bad "$1" EINVAL 0 1 "$2x" "$2 $2" "${2^^}" "${2:0:-1}"
	good "$@"
	bad "$1" EINVAL nothing
}
