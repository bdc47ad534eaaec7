# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# For guest scripts that measure between the namespaces a (client) and b
# (server): runs of Rivet's perf and of perftest, policies, and what else the
# cases of "make bench" have in common. Sourcing it does nothing.

BENCH=$(dirname "${BASH_SOURCE[0]}")
CONFIG=/sys/kernel/config/rivet
PERF=$CONFIG/perf
POLICIES=$CONFIG/policies
SERVER=10.77.0.2

in_a() { nsenter --net=/run/netns/a "$@"; }
in_b() { nsenter --net=/run/netns/b "$@"; }

# matches NAME PATTERN...: one of the patterns matches it.
matches() {
	local name=$1 pattern
	shift
	for pattern; do
		# shellcheck disable=SC2053 # it is a pattern
		[[ $name != $pattern ]] || return 0
	done
	return 1
}

# calc EXPRESSION: as awk knows it. Fails without a number, as after x / 0.
calc() { awk "BEGIN { printf \"%.9g\\n\", ($1) }" </dev/null; }

# nap SECONDS: without a program, which would cost instructions.
nap() {
	[ -n "${IDLE-}" ] || exec {IDLE}<> <(:)
	read -r -t "$1" -u "$IDLE" || :
}

# ---- policies ---------------------------------------------------------------

# policy NAME BASE [KNOB=VALUE...]: a policy like BASE but for these knobs. One
# that is there already is taken as it is.
policy() {
	local name=$1 base=$2 knob to
	shift 2
	[ ! -d "$POLICIES/$name" ] || return 0
	mkdir "$POLICIES/$name" || return
	while read -r knob; do
		to=$POLICIES/$name/${knob##*/}
		[ "$(<"$knob")" = "$(<"$to")" ] || cat "$knob" >"$to" || return
	done < <(find "$POLICIES/$base" -type f ! -name users)
	for knob; do
		echo "${knob#*=}" >"$POLICIES/$name/${knob%%=*}" || return
	done
}

# knob POLICY KNOB: its value.
knob() { cat "$POLICIES/$1/$2"; }

# waiting MODE: the setting that makes an end wait for its completions so.
waiting() { policy "$1" default completion="$1" && echo "policy=$1"; }

# tidy: removes all ends, and the policies that "policy" made.
tidy() {
	local dir
	for dir in "$PERF"/*/ "$POLICIES"/*/; do
		case $dir in
		*/\*/ | */policies/naive/ | */policies/default/) ;;
		*/policies/latency/ | */policies/throughput/) ;;
		*) rmdir "$dir" ;;
		esac
	done
}

# ---- runs -------------------------------------------------------------------

# rivet_server KEY=VALUE...: takes the place of one that runs.
rivet_server() {
	[ ! -d $PERF/server ] || rivet_server_stop || return
	in_b /rivet/bench/set-end server role=server address=$SERVER "$@" start=1
}

rivet_server_stop() { rmdir $PERF/server; }

# read_into ARRAY FILE: a file of "key value" lines.
read_into() {
	local -n into=$1
	local key value
	into=()
	# shellcheck disable=SC2034 # it is another's
	while read -r key value; do into["$key"]=$value; done <"$2"
}

# load KEY=VALUE...: one client's run. Sets R to its result and S to its stats.
# The state is looked at every $LOOK seconds; looking costs instructions too.
declare -A R S
load() {
	local end=$PERF/client state
	if ! in_a /rivet/bench/set-end client role=client address=$SERVER "$@" start=1; then
		echo "rivet refused: $*" >&2
		rmdir $end
		return 1
	fi
	while read -r state <$end/state && [ "$state" = running ]; do
		nap "${LOOK:-0.05}"
	done
	if [ "$state" != "done" ]; then
		echo "rivet: $(<$end/error)" >&2
		rmdir $end
		return 1
	fi
	read_into R $end/result
	S=()
	[ ! -e $end/stats ] || read_into S $end/stats
	rmdir $end
}

# rivet_run RESULT-KEY KEY=VALUE...: one client's run; prints the result.
rivet_run() {
	load "${@:2}" && echo "${R[$1]}"
}

# per_op STAT: of the last load.
per_op() {
	if [ -z "${S[$1]-}" ]; then
		echo "the stats have no $1" >&2
		return 1
	fi
	calc "${S[$1]} / ${R[ops]}"
}

# costs: sets COST to what bench/cost finds.
declare -A COST
costs() {
	local step ns
	dmesg --clear
	in_a insmod /rivet/rivet_cost.ko && rmmod rivet_cost || return
	COST=()
	# shellcheck disable=SC2034 # it is another's
	while read -r step ns; do COST["$step"]=$ns; done < <(dmesg --notime | sed -n 's/^rivet_cost: //p')
}

# What a case measures if it does not say otherwise: operations per second, or
# under the instruction clock, where a nanosecond is an instruction, what one
# operation costs: both ends, the soft devices and the network included.
figure() {
	if [ "$CLOCK" = icount ]; then
		calc "${R[elapsed_ns]} / ${R[ops]}"
	else
		echo "${R[iops]}"
	fi
}

# amount COUNT: the settings for so long a load: COUNT operations under the
# instruction clock, which wants the same work each time, else a time.
amount() {
	if [ "$CLOCK" = icount ]; then
		echo "count=$1"
	else
		echo "duration_ms=400"
	fi
}

# perftest_run COLUMN TOOL OPTIONS...: prints a column of the tool's table.
perftest_run() {
	local column=$1 tool=$2 server out
	shift 2
	# A process of its own, whose view of the network can be looked into.
	nsenter --net=/run/netns/b "$tool" -d rxeb -x "$GID_INDEX" -F "$@" >/tmp/perftest.server 2>&1 &
	server=$!
	# The server is there when it listens: port 18515, state LISTEN.
	until [[ $(cat /proc/$server/net/tcp{,6} 2>/dev/null) == *:4853\ *\ 0A\ * ]]; do
		kill -0 $server 2>/dev/null || break
		nap 0.02
	done
	out=$(in_a "$tool" -d rxea -x "$GID_INDEX" -F "$@" $SERVER 2>&1)
	wait $server
	# The last line of numbers; latencies have 9 columns, rates 5.
	awk -v column="$column" '/^ *[0-9]+ +[0-9]+ / { value = $column } END { if (value == "") exit 1; print value }' <<<"$out" || {
		printf '%s\n' "$out" >&2
		return 1
	}
}

# The RoCE v2 GID of the IPv4 address, alike at both ends.
gid_index() {
	local i
	for i in /sys/class/infiniband/rxea/ports/1/gids/*; do
		if grep -qs '^0000:0000:0000:0000:0000:ffff:' "$i"; then
			basename "$i"
			return
		fi
	done
	return 1
}

# ---- pairs ------------------------------------------------------------------

# in_turn FUNCTION FUNCTION: whoever goes first changes with $ROUND.
in_turn() {
	if [ $((ROUND % 2)) -eq 0 ]; then
		"$1" && "$2"
	else
		"$2" && "$1"
	fi
}

# beside_perftest_setup: a server.
beside_perftest_setup() { rivet_server policy=latency; }


# beside_perftest METRIC OP SIZE: both poll. Sets rivet and other; latencies in
# us (write and send: half a round trip), rates in operations per second at
# depth 32. There are so many operations that a run takes some tenths of a
# second.
beside_perftest() {
	local -A ping=([write]=write_ping [send]=send_ping [read]=read)
	"beside_perftest_$1" "$2" "$3" && [ -n "$rivet" ] && [ -n "$other" ]
}

beside_perftest_latency() { # OP SIZE
	local op=$1 size=$2 n
	case $2 in 65536) n=40 ;; 4096) n=250 ;; *) n=400 ;; esac
	run_rivet() {
		load op="${ping[$op]}" size="$size" policy=latency count="$n" && rivet=$(calc "${R[lat_ns_p50]} / 1000")
	}
	run_other() { other=$(perftest_run 5 "ib_${op}_lat" -s "$size" -n "$n"); }
	in_turn run_rivet run_other
}

beside_perftest_rate() { # OP SIZE
	local op=$1 size=$2 n
	case $2 in 65536) n=96 ;; 4096) n=800 ;; *) n=1500 ;; esac
	run_rivet() { load op="$op" size="$size" policy=default depth=32 count="$n" && rivet=${R[iops]}; }
	run_other() {
		local millions
		millions=$(perftest_run 5 "ib_${op}_bw" -s "$size" -n "$n" -t 32) && other=$(calc "$millions * 1000000")
	}
	in_turn run_rivet run_other
}

# cached_beside MODE: makes the case one of 4 KiB READs at depth 1 into regions
# that the MR cache keeps, beside another mode of memory. By interrupt: who polls
# on the only CPU has the waiting counted.
cached_beside() {
	MODE=$1 other_name=$1
	setup() {
		rivet_server policy=default && policy cached default memory=cached completion=interrupt &&
			policy "$MODE" default memory="$MODE" completion=interrupt
	}
	describe() { [ "$1" != saved ] || goal=record other_name=-; }
	run() { load op=read size=4096 submitters=1 buffers=64 policy="$1" "$(amount 3000)"; }
	round() {
		local rivet other
		run_rivet() { run cached && rivet=$(figure); }
		run_other() { run "$MODE" && other=$(figure); }
		in_turn run_rivet run_other && pair "$rivet" "$other" || return
		[ "$CLOCK" != icount ] || pair_of saved "$(calc "$other - $rivet")"
	}
}

# by_interrupt OP TOOL SIZE: makes the case one of what an operation costs at
# depth 1 by interrupt, beside a tool of perftest that sleeps on events.
by_interrupt() {
	OP=$1 TOOL=$2 SIZE=$3
	clocks=icount other_name=perftest
	setup() { CLIENT=$(waiting interrupt) && rivet_server "$CLIENT"; }
	round() {
		local rivet other
		run_rivet() { load op="$OP" size="$SIZE" "$CLIENT" count=4000 && rivet=$(calc "${R[lat_ns_avg]}"); }
		run_other() { other=$(perftest_run 6 "$TOOL" -e -s "$SIZE" -n 4000) && other=$(calc "$other * 1000"); }
		in_turn run_rivet run_other && pair "$rivet" "$other"
	}
}

# exchange_round OP: the round of a case, 4 KiB at two depths: both ends by default
# and by latency, beside naive.
exchange_round() {
	local op=$1 depth default latency naive
	by() { rivet_server policy="$1" && load op="$op" size=4096 depth="$depth" policy="$1" "$(amount 2000)"; }
	run_rivet() { by default && default=$(figure) && by latency && latency=$(figure); }
	run_other() { by naive && naive=$(figure); }
	for depth in 1 32; do
		in_turn run_rivet run_other && pair_of "depth-$depth" "$default" "$naive" &&
			pair_of "latency-depth-$depth" "$latency" "$naive" || return
	done
}

# ---- cases ------------------------------------------------------------------

# take_case NAME: its variables and functions, over what they are by default;
# bench/measure tells what they mean.
take_case() {
	# shellcheck disable=SC2034 # for the caller
	clocks="threads icount" mtus="9000 1500" cpus=2 requires="" other_name=- goal=record
	# shellcheck disable=SC2034 # likewise
	case $CLOCK in
	icount) metric=instructions unit=instr/op ;;
	*) metric=rate unit=op/s ;;
	esac
	setup() { :; }
	describe() { :; }
	# shellcheck source=/dev/null
	. "$BENCH/cases/$1.sh"
}
