# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034,SC2153,SC2154 # variables of the other files
#
# For selftests/soak/run: ends and policies as they were drawn, and what has to be
# true of them at any time.

# Namespace and address of each server. Its clients are in the other namespace.
SERVERS="s0 s1 s2"
declare -A NS_OF=([s0]=b [s1]=b [s2]=a)
declare -A ADDRESS=([s0]=10.77.0.2 [s1]=fd77::2 [s2]=10.77.0.1)
declare -A PORT=([s0]=18515 [s1]=18516 [s2]=18517)
CLIENTS="c0 c1 c2 c3"

# Which clients are meant to be at work; their operations at the last look; sessions
# of each server that have failed until then.
declare -A AT_WORK SNAP FAILED
RACER=""     # a client that an act has for itself
HOLD=""      # nothing can be started for now
BOUND=20     # seconds that stopping may take, and that nothing may go on
TIMEOUT=10    # seconds of silence that end a session
STARTS=0 OPS=0 BYTES=0

# ---- what ends may say ------------------------------------------------------

# How sessions fail when the peer ends, when it vanishes, when a device goes.
ENDED="the (peer|client) ended the connection"
BROKE="broke: (flushed|transport retries exceeded)|was silent for|nothing was completed"
# A client that gives up while it connects rejects, with that reason; the CM refuses to
# set up a QP for a connection that is rejected already.
GAVE_UP="refused: timeout|control QP: error -22"
GOES="the device .*(is being removed|went away)|the device is being removed"

# may_say PATTERN: from now on, for a while, sessions of servers may fail so.
declare -A EXCUSES
may_say() { EXCUSES[$1]=$((SECONDS + 30 * SLOWER)); }
excused() {
	local pattern
	for pattern in "${!EXCUSES[@]}"; do
		[ $SECONDS -gt "${EXCUSES[$pattern]}" ] || [[ ! $1 =~ $pattern ]] || return 0
	done
	return 1
}

# look_at_server SERVER: it works, and its sessions failed for a reason only.
look_at_server() {
	right "$1"
	if [ "${R[sessions_failed]}" != "${FAILED[$1]}" ]; then
		FAILED[$1]=${R[sessions_failed]}
		get "$1" error
		excused "$V" || fail "$1: a session has failed: '$V'"
	fi
	state_is "$1" running || fail "$1 is $V"
}

# account CLIENT: it is over; what it did was right, and counts.
account() {
	AT_WORK[$1]=""
	right "$1"
	OPS=$((OPS + R[ops])) BYTES=$((BYTES + R[bytes]))
}

# is_done CLIENT: with all that it had to do.
is_done() {
	results "$1"
	# What was lost of pings counts as nothing.
	[ "${R[ops]}" = "${COUNT[$1]}" ] || [ $((R[ops] + R[lost])) = "${COUNT[$1]}" ] ||
		fail "$1: ${R[ops]} operations, ${R[lost]} lost, not ${COUNT[$1]}"
	[ "${R[errors]}" = 0 ] || fail "$1: ${R[errors]} errors"
	account "$1"
}

# has_gone_on CLIENT: since the last look. One that is done begins again, unless its
# policy has become one by which it cannot.
has_gone_on() {
	get "$1" state
	case $V in
	running) results "$1" && [ "${R[ops]}" -gt "${SNAP[$1]}" ] ;;
	done)
		is_done "$1"
		[ -n "$HOLD" ] || ! fits "$1" || launch "$1"
		;;
	*)
		fail "$1 is $V: $(<"$C/$1/error")"
		AT_WORK[$1]=""
		;;
	esac
}

# all_well: servers work, clients go on, the kernel has no complaint.
all_well() {
	local name taint
	for name in $SERVERS; do look_at_server "$name"; done
	for name in $CLIENTS; do
		[ -z "${AT_WORK[$name]}" ] || { right "$name" && SNAP[$name]=${R[ops]}; }
	done
	for name in $CLIENTS; do
		[ -z "${AT_WORK[$name]}" ] || wait_for $BOUND has_gone_on "$name" ||
			fail "$name: nothing after ${SNAP[$name]} operations: ${BY[$name]} ${OP[$name]} ${LOAD[$name]}"
	done
	read -r taint </proc/sys/kernel/tainted
	# D: it died. W: it warned.
	[ $((taint & (1 << 7 | 1 << 9))) -eq 0 ] || fail "the kernel has complained: it is tainted ($taint)"
}

# ---- clients ----------------------------------------------------------------

# away CLIENT: W is the namespace that it is in.
away() { [ "${NS_OF[${TO[$1]}]}" = a ] && W=b || W=a; }

# timed WHAT COMMAND...: within the bound.
timed() {
	local begin=${EPOCHREALTIME/./} ms
	"${@:2}"
	ms=$(((${EPOCHREALTIME/./} - begin) / 1000))
	[ "$ms" -le $((BOUND * 1000 * SLOWER)) ] || fail "$1 took $ms ms"
}
halt() {
	NS="" put "$1/stop" 1
	[ "$ERRNO" = OK ] || fail "$1: stop: $ERRNO"
}
stop() { timed "$1: stop" halt "$1"; }
rmdir_end() { rmdir "$C/$1" || fail "$1 cannot be removed"; }
remove() { timed "$1: rmdir" rmdir_end "$1"; }

# set_up CLIENT: with what was drawn for it.
set_up() {
	local to=${TO[$1]}
	[ ! -d "$C/$1" ] || remove "$1"
	# shellcheck disable=SC2086 # a list
	make "$1" role=client "address=${ADDRESS[$to]}" "port=${PORT[$to]}" "policy=${BY[$1]}" "op=${OP[$1]}" \
		verify=1 "timeout_ms=$((TIMEOUT * SLOWER * 1000))" ${LOAD[$1]}
}

# launch CLIENT: it is set up.
launch() {
	away "$1"
	start "$1" "$W"
	AT_WORK[$1]=1
	STARTS=$((STARTS + 1))
}

# drawn CLIENT: something else to do.
drawn() {
	draw_load "$1"
	decide "$1 to ${TO[$1]} by ${BY[$1]}: ${OP[$1]} ${LOAD[$1]}"
}
anew() { drawn "$1" && set_up "$1" && launch "$1"; }

# once_more CLIENT...: with the same to do, if policies still are so that they can.
once_more() {
	local name
	for name; do
		if fits "$name"; then
			set_up "$name" && launch "$name"
		else
			anew "$name"
		fi
	done
}

# stopped CLIENT: it is there, and does nothing any more.
stopped() {
	may_say "$ENDED"
	stop "$1"
	[ -z "${AT_WORK[$1]}" ] || {
		state_is "$1" "done" || fail "$1 is $V: $(<"$C/$1/error")"
		account "$1"
	}
}

# end CLIENT HOW: it is stopped and removed, or removed as it is.
end() {
	may_say "$ENDED"
	[ "$2" = rmdir ] || stopped "$1"
	[ -z "${AT_WORK[$1]}" ] || account "$1"
	remove "$1"
}

# broken PATTERN CLIENT...: these end by themselves, and say why, unless they were
# done before.
broken() {
	local name
	for name in "${@:2}"; do
		[ -n "${AT_WORK[$name]}" ] || continue
		wait_for $((TIMEOUT + BOUND)) is_over "$name" || fail "$name goes on"
		if [ "$V" = failed ]; then
			get "$name" error
			[[ $V =~ $1 ]] || fail "$name has failed: '$V'"
		fi
		account "$name"
	done
}

# clients_of SERVER|NAMESPACE|all: WORDS are those that are connected there.
clients_of() {
	local name
	WORDS=()
	for name in $CLIENTS; do
		[ "$name" != "$RACER" ] || continue
		[[ $1 = s* && ${TO[$name]} != "$1" ]] || WORDS+=("$name")
	done
}

# ---- servers and policies ---------------------------------------------------

# serve SERVER POLICY
serve() {
	SERVED_BY[$1]=$2 FAILED[$1]=0
	[ -d "$C/$1" ] ||
		make "$1" role=server "address=${ADDRESS[$1]}" "port=${PORT[$1]}" "timeout_ms=$((TIMEOUT * SLOWER * 1000))"
	echo "$2" >"$C/$1/policy"
	start "$1" "${NS_OF[$1]}"
}

# unserve SERVER HOW
unserve() {
	look_at_server "$1"
	"${2/rmdir/remove}" "$1"
}

# listen_again NAMESPACE: servers, after their device came back. The log was cleared
# before it went.
listen_again() {
	local name
	for name in $SERVERS; do
		[ "${NS_OF[$name]}" != "$1" ] || wait_for 10 log_has "listening on .*${ADDRESS[$name]}.*again" ||
			fail "$name does not listen again"
	done
}
log_has() { [ "$(log_count "$1")" -gt 0 ]; }

# own_policy NAME: it is made.
own_policy() {
	draw_policy
	decide "policy $1: ${SETTINGS[*]}"
	policy "$1" "${SETTINGS[@]}"
	note_knobs "$1" completion=adaptive cpus=all "${SETTINGS[@]}"
}

# ---- all of it --------------------------------------------------------------

begin_all() {
	local name
	for name in $OWN; do own_policy "$name"; done
	# shellcheck disable=SC2086 # a list
	for name in $SERVERS; do
		pick $OWN $PRESETS
		decide "$name by $W"
		serve "$name" "$W"
	done
	for name in $CLIENTS; do anew "$name"; done
}

end_all() {
	local name how
	may_say "$ENDED"
	# shellcheck disable=SC2086 # lists
	shuffle $SERVERS $CLIENTS
	decide "all end: ${WORDS[*]}"
	for name in "${WORDS[@]}"; do
		pick stop rmdir && how=$W
		case $name in
		s*)
			unserve "$name" "$how"
			clients_of "$name" && broken "$ENDED" "${WORDS[@]}"
			;;
		c*) end "$name" "$how" ;;
		esac
	done
	for name in $SERVERS; do [ ! -d "$C/$name" ] || remove "$name"; done
	for name in $OWN; do rmdir "$P/$name" || fail "policy $name cannot be removed"; done
}
