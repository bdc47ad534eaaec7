# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034 # variables for bench/measure
#
# Rivet's NVMe host beside nvme-rdma: the same target, null_blk behind it, in the same
# boot and in turns. Beside the small reads stand "null-NAME", the same load on null_blk
# itself, without any of it, and "naive-NAME", Rivet by the policy "naive"; beside read-32 what
# Rivet's queues have posted, rung and had events for, for each request.
#
# By instructions there are "capsule-NAME", perf's capsule_read beside null_blk: the same READs of the
# same target, by a lane that does nothing else, in the lots (see LOTS) that cost least; and "own-NAME",
# what is each host's own: the whole, less both of these.
#
# NVME_ROWS are the rows that are wanted, without what stands beside them (all).

# Name, what is better (lower latency, higher rate), how much of it, fio's options.
ROWS=(
	"read-1 lat 0.8 --rw=randread --bs=4k --iodepth=1"
	"write-1 lat 0.8 --rw=randwrite --bs=4k --iodepth=1"
	"read-32 iops 1.3 --rw=randread --bs=4k --iodepth=32"
	"read-32x2 iops 1.3 --rw=randread --bs=4k --iodepth=32 --numjobs=2"
	"write-32 iops 1.3 --rw=randwrite --bs=4k --iodepth=32"
	"small-32 iops 1.3 --rw=randread --bs=512 --iodepth=32"
	"sequential-read-8 bytes 1.1 --rw=read --bs=128k --iodepth=8"
	"sequential-write-8 bytes 1.1 --rw=write --bs=128k --iodepth=8"
	"polled-1 lat 0.9 --rw=randread --bs=4k --iodepth=1 --hipri"
)
# READs of a lot, of which the best counts; all by the host's policy otherwise.
LOTS="1 4 8 16 32"
# Four queues, whatever the CPUs are, and one that is polled.
QUEUES="--nr-io-queues=2 --nr-write-queues=2 --nr-poll-queues=1"

other_name=nvme-rdma
requires="file:$CONFIG/nvme"

# row NAME: sets options, what and least.
row() {
	local row name
	for row in "${ROWS[@]}"; do
		read -r name what least options <<<"$row"
		[ "$name" != "$1" ] || return 0
	done
	return 1
}

describe() {
	local what least options
	goal=record
	case $1 in
	connect) metric=time unit=ms goal="ratio <= 1.0" && return ;;
	posts) metric="work requests" unit=wr/IO goal="rivet <= 1" other_name=- && return ;;
	doorbells) metric=doorbells unit=per/IO other_name=- && return ;;
	cq_events) metric="CQ events" unit=per/IO other_name=- && return ;;
	esac
	row "${1#@(null|naive|capsule|own)-}" || return
	case $CLOCK:$what in
	icount:*) metric=instructions unit=instr/IO ;;
	*:lat) metric=latency unit=us goal="ratio <= $least" ;;
	*:iops) metric=rate unit=IO/s goal="ratio >= $least" ;;
	*:bytes) metric=throughput unit=B/s goal="ratio >= $least" ;;
	esac
	[ "$CLOCK:$1" != icount:read-1 ] || goal="ratio <= 0.95"
	case $1 in
	null-*) goal=record other_name=null_blk ;;
	naive-*) goal=record other_name=naive ;;
	capsule-*) metric="instructions of capsule_read" other_name=null_blk ;;
	own-*) metric="instructions of its own" goal="ratio <= 0.5" ;;
	esac
}

setup() {
	# shellcheck source=bench/nvme.sh
	. "$BENCH/nvme.sh"
	# shellcheck disable=SC2086 # words
	nvme_up $QUEUES
}

# connect_time HOST: of one more connect, in ms.
connect_time() {
	local begin
	nvme disconnect -n "$NQN:$1" >/dev/null || return
	begin=${EPOCHREALTIME/./}
	# shellcheck disable=SC2086 # words
	nvme_connect "$1" $QUEUES || return
	CONNECTED=$(((${EPOCHREALTIME/./} - begin) / 1000))
}

# figure_of HOST: of the row.
figure_of() {
	# So many that fio's milliseconds do not matter.
	local IOS=1500
	[ "$what" != bytes ] || IOS=150
	# shellcheck disable=SC2086 # words
	fio_on "$1" $options || return
	case $CLOCK:$what in
	# All that the machine does while the requests are under way, divided by them.
	icount:*) FIGURE=$(calc "1000000000 / ${F[iops]}") ;;
	*:lat) FIGURE=$(calc "${F[lat]} / 1000") ;;
	*) FIGURE=${F[$what]} ;;
	esac
}

# capsules DEPTH: FIGURE is what a READ costs without a host, in the lots that cost least.
capsules() {
	local lot end=$PERF/capsules state best=""
	for lot in $LOTS; do
		[ "$lot" -le "$1" ] || continue
		policy "lots-of-$lot" default batch="$lot" || return
		/rivet/bench/set-end capsules role=client address=10.78.0.2 op=capsule_read nqn="$NQN:rivet" \
			hostnqn="$HOSTNQN:capsules" policy="lots-of-$lot" depth="$1" count="$IOS" start=1 || return
		while read -r state <"$end/state" && [ "$state" = running ]; do nap "${LOOK:-0.05}"; done
		if [ "$state" != "done" ]; then
			echo "capsule_read: $(<"$end/error")" >&2
			return 1
		fi
		read_into R "$end/result"
		rmdir "$end"
		FIGURE=$(calc "${R[elapsed_ns]} / ${R[ops]}") || return
		echo "# capsule_read, depth $1, lots of $lot: $FIGURE"
		[ -n "$best" ] && [ "$(calc "$best <= $FIGURE")" = 1 ] || best=$FIGURE
	done
	FIGURE=$best
}

# own ROW: what is a host's own in it, by instructions.
own() {
	local depth=${1#read-} null=$FIGURE floor rest IOS=1500
	[ "$CLOCK" = icount ] || return 0
	capsules "$depth" && floor=$FIGURE && pair_of "capsule-$1" "$floor" "$null" || return
	rest=$(calc "$other - $null - $floor") || return
	# Nothing is half of what is not there.
	[ "$(calc "$rest > 0")" = 1 ] || rest=-
	pair_of "own-$1" "$(calc "$rivet - $null - $floor")" "$rest"
}

# beside ROW: what stands beside it.
beside() {
	local -A before
	local key ios
	[[ $1 = read-@(1|32) ]] || return 0
	figure_of null && pair_of "null-$1" - "$FIGURE" && own "$1" || return
	figure_of naive && pair_of "naive-$1" "$rivet" "$FIGURE" || return
	[ "$1" = read-32 ] || return 0
	counted "${CTRLS[rivet]}"
	for key in posts doorbells cq_events; do before[$key]=${COUNT[$key]}; done
	figure_of rivet && counted "${CTRLS[rivet]}" || return
	ios=$((F[total] / 4096))
	for key in posts doorbells cq_events; do
		pair_of $key "$(calc "(${COUNT[$key]} - ${before[$key]}) / $ios")" || return
	done
}

round() {
	local row name what least options rivet other
	run_rivet() { figure_of rivet && rivet=$FIGURE; }
	run_other() { figure_of rdma && other=$FIGURE; }
	for row in "${ROWS[@]}"; do
		row "${row%% *}" || return
		name=${row%% *}
		[ -z "${NVME_ROWS-}" ] || [[ " $NVME_ROWS " == *" $name "* ]] || continue
		# A round takes minutes, and the machine is not to be taken for dead.
		echo "# $name"
		# On one CPU nothing else runs while somebody polls.
		[ "$CLOCK:$name" != icount:polled-1 ] || continue
		in_turn run_rivet run_other && pair_of "$name" "$rivet" "$other" || return
		[ -n "${NVME_ROWS-}" ] || [ "$name" = polled-1 ] || beside "$name" || return
	done
	[ "$CLOCK" = threads ] && [ -z "${NVME_ROWS-}" ] || return 0
	run_rivet() { connect_time rivet && rivet=$CONNECTED; }
	run_other() { connect_time rdma && other=$CONNECTED; }
	in_turn run_rivet run_other && pair_of connect "$rivet" "$other"
}
