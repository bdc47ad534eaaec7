# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# For the tests in selftests/perf and selftests/engine. A test is a function: it
# calls "fail" for each thing that is wrong, and goes on or returns as it likes.
# A script names its tests at its end:
#
#	tests "FUNCTION ARGUMENT..." ...
#
# of which ONLY= in the environment (--env of qemu/vm) takes those that match a pattern.
# Each runs in a shell of its own and is reported under these words. After it
# all ends and policies are removed, what "restore" does is done (a script may
# define it), and everything of RDMA must be as it was before: if not, the test
# failed.

# shellcheck source=qemu/guest/lib.sh
. "${RIVET_AT:-/rivet}/lib.sh"
choose_device || exit 1

PATH=$PATH:$RIVET_AT/bin
RIVET=/sys/kernel/config/rivet
C=$RIVET/perf
P=$RIVET/policies
FAILURES=0
# The longest payload: with what is around it, 1 MiB is more than a region of siw.
LONG=1048576
# shellcheck disable=SC2034 # the scripts'
[ "$DEVICE" != siw ] || LONG=1048512

# The programs that a test starts cost more than what it tests, so what is done
# often is done by the shell itself.
exec {IDLE}<> <(:)
nap() { read -r -t "$1" -u "$IDLE" || :; }

# wait_for SECONDS COMMAND...: until COMMAND succeeds.
wait_for() {
	local end=$((SECONDS + $1 * SLOWER))
	shift
	until "$@"; do
		[ $SECONDS -le $end ] || return 1
		nap 0.02
	done
}

# ---- ends -------------------------------------------------------------------

# make NAME KEY=VALUE...: an end with these settings. The policy "interrupt" is
# made for it.
make() {
	local name=$1 pair
	shift
	mkdir "$C/$name" || { fail "$name cannot be made" && return 1; }
	for pair; do
		[ "$pair" != policy=interrupt ] || [ -d "$P/interrupt" ] || policy interrupt completion=interrupt
		echo "${pair#*=}" >"$C/$name/${pair%%=*}" || fail "$name: $pair was refused"
	done
}

# at NAME: A is the directory of an end, or of "/policies/NAME".
at() {
	case $1 in
	/*) A=$RIVET$1 ;;
	*) A=$C/$1 ;;
	esac
}

# policy NAME KNOB=VALUE...: a policy with these knobs, otherwise like "default".
policy() {
	local name=$1 pair
	shift
	mkdir "$P/$name" || return 1
	for pair; do
		echo "${pair#*=}" >"$P/$name/${pair%%=*}" || fail "$name: $pair was refused"
	done
}

# turn KNOB=VALUE...: of the policy p.
turn() {
	local pair
	for pair; do echo "${pair#*=}" >"$P/p/${pair%%=*}" || fail "$pair was refused"; done
}

# put FILE [VALUE]: writes exactly VALUE to a file of an end (or to
# /policies/NAME/FILE), in namespace $NS.
# Sets ERRNO to the errno's name or OK, and LINES to the lines that this write
# brought into the kernel's log.
put() {
	local line all
	at "$1"
	mapfile -t all < <(attr_write ${NS:+-n "$NS"} "$A" "${@:2}")
	A=${A%/*}
	ERRNO=${all[0]:-nothing}
	LINES=()
	for line in "${all[@]:1}"; do
		[[ $line != "rivet: ${A#"$RIVET"/}: "* ]] || LINES+=("$line")
	done
}

# start NAME NAMESPACE: fails the test if the end does not start.
start() {
	NS=$2 put "$1/start" 1
	[ "$ERRNO" = OK ] || fail "$1: start: $ERRNO ${LINES[*]}"
}

# server [NAME] KEY=VALUE...: a server that runs in namespace b.
server() {
	local name=s
	[[ ${1-} == *=* ]] || [ $# -eq 0 ] || { name=$1 && shift; }
	make "$name" role=server address="$SERVER" "$@" && start "$name" b
}

# client [NAME] KEY=VALUE...: a client, not started.
client() {
	local name=c
	[[ ${1-} == *=* ]] || [ $# -eq 0 ] || { name=$1 && shift; }
	make "$name" role=client address="$SERVER" "$@"
}

# get NAME FILE: V is its first line.
get() { at "$1" && V="" && read -r V <"$A/$2" || :; }

state_is() { get "$1" state && [ "$V" = "$2" ]; }

is_over() { get "$1" state && [ "$V" != running ]; }

# await_done NAME [SECONDS], await_failed NAME [SECONDS]: it must end so.
await_done() { await "$1" "done" "${2:-30}"; }
await_failed() { await "$1" failed "${2:-30}"; }
await() {
	wait_for "$3" is_over "$1"
	[ "$V" != "$2" ] || return 0
	fail "$1 is '$V', not '$2': $(<"$C/$1/error")"
	return 1
}

# results NAME: R[key] is what the end's result says.
declare -A R
results() {
	local key value
	R=()
	while read -r key value; do R[$key]=$value; done <"$C/$1/result"
}

# expect NAME KEY=VALUE...: what the end's result must say.
expect() {
	local pair
	results "$1"
	for pair in "${@:2}"; do
		[ "${R[${pair%%=*}]-}" = "${pair#*=}" ] ||
			fail "$1: ${pair%%=*} is ${R[${pair%%=*}]-missing}, not ${pair#*=}"
	done
}

# has_error NAME PATTERN: "error" must match.
has_error() {
	get "$1" error
	# shellcheck disable=SC2053 # a pattern
	[[ $V == *$2* ]] || fail "$1: error is '$V', not *$2*"
}

# right NAME: what was done until now was done right.
right() {
	results "$1"
	[ "${R[miscompares]}" = 0 ] || fail "$1: ${R[miscompares]} miscompares"
}

# has_done COUNT: operations, by the client c. goes_on WHAT: some end within seconds
# after WHAT.
has_done() { results c && [ "${R[ops]}" -ge "$1" ]; }
goes_on() {
	local to
	results c && to=$((R[ops] + 40))
	wait_for 5 has_done "$to" || fail "after $1: $((R[ops] + 40 - to)) operations in 5 s: $(<"$C"/c/error)"
}

# run_load COUNT KEY=VALUE...: a client's load of COUNT operations on a server
# that runs, verified. Fails unless each of them was done, and done right.
run_load() {
	local count=$1
	shift
	client "verify=1" "count=$count" "$@" && start c a && await_done c 60 || return
	expect c "ops=$count" errors=0 miscompares=0 lost=0
	rmdir $C/c
}

# serves: the server s is none the worse: it serves an honest client.
serves() { run_load 20 size=100 depth=4; }

# stats NAME: S[key] is what the end's stats say.
declare -A S
stats() {
	local key value
	S=()
	# shellcheck disable=SC2034 # the script's
	while read -r key value; do S[$key]=$value; done <"$C/$1/stats"
}

# stats_are KEY=VALUE...: what "stats" has found.
stats_are() {
	local pair
	for pair; do
		[ "${S[${pair%%=*}]-}" = "${pair#*=}" ] || fail "${pair%%=*} is ${S[${pair%%=*}]-missing}, not ${pair#*=}"
	done
}

# result_is NAME KEY VALUE
result_is() { results "$1" && [ "${R[$2]-}" = "$3" ]; }

# ---- the kernel's log -------------------------------------------------------

log_clear() { dmesg -C; }
# log_count PATTERN: how many lines since log_clear match.
log_count() { dmesg | grep -cE "rivet: .*$1"; }

# ---- what is left -----------------------------------------------------------

# All RDMA objects, per device.
objects() {
	local line
	while read -r _ line; do
		case $line in
		"$DEV_A":* | "$DEV_B":*) echo "$line" ;;
		esac
	done < <(rdma resource show) | sort
}
objects_are() { [ "$(objects)" = "$1" ]; }

# remove_ends: all but the server that a script keeps for all of its tests.
remove_ends() {
	local end
	for end in "$C"/*/; do
		[ ! -d "$end" ] || [ "$end" = "$C/${KEEP-}/" ] || rmdir "$end" || echo "$end cannot be removed"
	done
}

# remove_policies: all but the presets.
remove_policies() {
	local policy
	for policy in "$P"/*/; do
		case $policy in
		*/naive/ | */default/ | */latency/ | */throughput/) ;;
		*) [ ! -d "$policy" ] || rmdir "$policy" || echo "$policy cannot be removed" ;;
		esac
	done
}

# keep_server KEY=VALUE...: the server s is there for all tests of the script.
keep_server() {
	server "$@" || exit 1
	KEEP=s
	EMPTY=$OBJECTS
	OBJECTS=$(objects)
}

restore() { :; }

# ---- the network ------------------------------------------------------------

# net_addresses: gives back what interfaces forgot that were set down.
net_addresses() {
	ip -n a addr replace fd77::1/64 dev va nodad
	ip -n b addr replace fd77::2/64 dev vb nodad
	neighbour a va 2 b vb
	neighbour b vb 1 a va
	gids_ready
}

neighbour() {
	local address
	for address in 10.77.0.$3 fd77::$3; do
		ip -n "$1" neigh replace "$address" lladdr "$(mac_of "$4" "$5")" dev "$2" nud permanent
	done
}

# link NAMESPACE: its device, if it is not there.
link() {
	[ ! -d "/sys/class/infiniband/$DEVICE$1" ] || return 0
	device_up "$1"
	gids_ready
}

# renew: both devices are made anew, after an interface was down: it has forgotten
# its IPv6 address and its neighbours. And rxe's QP 1 goes to error for good when
# it has to send what no way is for.
renew() {
	local ns
	for ns in a b; do
		rdma link delete "$DEVICE$ns"
		device_up $ns
	done
	net_addresses
}

# ---- reporting --------------------------------------------------------------

fail() {
	FAILURES=$((FAILURES + 1))
	echo "$*"
}

# progress TEXT: shown at once, as the machine is taken for dead after a long
# silence.
progress() { echo "# $*" >&3; }

skip() {
	echo "SKIP $*"
	exit 4
}

# needs WORD...: a test, or the whole script if it stands outside of one, is skipped
# where HAS has not all of these.
needs() {
	local word
	for word; do
		has "$word" || LACKING=${LACKING:-$(lack "$word")}
	done
	[ -z "$IN_TEST" ] || [ -z "$LACKING" ] || skip "$LACKING"
}
LACKING="" IN_TEST=""

lack() {
	case $1 in
	links) echo "$DEVICE cannot be deleted" ;;
	network) echo "the network of $DEVICE is not the test's" ;;
	namespaces) echo "both ends of $DEVICE are in one namespace" ;;
	rxe) echo "it is about soft-RoCE" ;;
	imm) echo "$DEVICE has no immediate data" ;;
	atomics) echo "$DEVICE has no atomics" ;;
	uc | ud) echo "$DEVICE has no $1" ;;
	esac
}

# needs_of SPEC: what the words of a test ask of the device.
needs_of() {
	local word
	for word in ${1//[=,]/ }; do
		case $word in
		uc | ud) needs "$word" ;;
		send_imm | write_imm) needs imm ;;
		fetch_add | cmp_swap) needs atomics ;;
		esac
	done
}

# one_test FUNCTION ARGUMENT...
one_test() {
	IN_TEST=1
	[ -z "$LACKING" ] || skip "$LACKING"
	needs_of "$*"
	"$@"
	local pids
	pids=$(jobs -p)
	# shellcheck disable=SC2086 # a list
	[ -z "$pids" ] || { kill -KILL $pids && wait; } 2>/dev/null
	exit $((FAILURES > 0))
}

tests() {
	local spec out rc line n=0 failed=0 begin wanted=()
	# shellcheck disable=SC2053 # a pattern
	for spec; do [[ $spec != ${ONLY-*} ]] || wanted+=("$spec"); done
	set -- "${wanted[@]}"
	out=$(mktemp)
	exec 3>&1
	echo "KTAP version 1"
	echo "1..$#"
	for spec; do
		n=$((n + 1))
		begin=${EPOCHREALTIME/./}
		# shellcheck disable=SC2086 # words
		(one_test $spec) >"$out" 2>&1
		rc=$?
		{ remove_ends && remove_policies && restore; } >>"$out" 2>&1
		if ! wait_for 3 objects_are "$OBJECTS"; then
			printf 'left:\n%s\nbefore:\n%s\n' "$(objects)" "$OBJECTS"
			[ $rc -ne 0 ] || rc=1
		fi >>"$out"
		while IFS= read -r line; do echo "# $line"; done <"$out"
		begin=$(((${EPOCHREALTIME/./} - begin) / 1000))
		case $rc in
		0) echo "ok $n $spec # $begin ms" ;;
		4) echo "ok $n $spec # SKIP $(sed -n 's/^SKIP //p' "$out")" ;;
		*) echo "not ok $n $spec # $begin ms" && failed=1 ;;
		esac
	done
	rm -f "$out"
	if [ -n "${KEEP-}" ]; then
		rmdir "$C/$KEEP" && wait_for 3 objects_are "$EMPTY" || failed=1
	fi
	exit $failed
}

# queue_pairs: QPS is how many an end has, on the mean of both.
queue_pairs() {
	local device line
	QPS=0
	for device in "$DEV_A" "$DEV_B"; do
		line=$(rdma resource show "$device") || fail "no resources"
		line=${line#* qp }
		QPS=$((QPS + ${line%% *}))
		[ "$DEV_A" != "$DEV_B" ] || break
	done
	QPS=$((QPS / 2))
}

# submitter_on N CPU: submitter N may run there only. V is where it may.
submitter_on() {
	local comm name key value
	V=""
	for comm in /proc/[0-9]*/comm; do
		read -r name <"$comm" && [ "$name" = "rivet_sub/$1" ] || continue
		while read -r key value; do
			[ "$key" != Cpus_allowed_list: ] || V=$value
		done <"${comm%/comm}"/status
	done 2>/dev/null
	[ "$V" = "$2" ]
}
