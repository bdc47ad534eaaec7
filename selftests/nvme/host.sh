#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What is Rivet's own of the host: its policy, seen by what the queues count, and its
# names.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"
need_tools fio mkfs.ext4

AT=/tmp/mounted

# by KNOB=VALUE...: connects by a policy with these knobs, otherwise like "default".
by() {
	by_policy "$@" && a_target && connects || return
	[ "$(cat "$P/p/users")" = 1 ] || fail "the policy has $(cat "$P/p/users") users"
	! rmdir "$P/p" 2>/dev/null || fail "a policy in use can be removed"
}

# io BYTES COUNT [OPTION...]: reads, then writes; DID[reads-KEY] and DID[writes-KEY]
# is what that counted.
declare -A DID
io() {
	local op key
	local -A before
	DID=()
	for op in reads writes; do
		counted "$CTRL"
		for key in "${!COUNT[@]}"; do before[$key]=${COUNT[$key]}; done
		fio --name=io --filename="$DISK" --rw="rand${op%s}" --bs="$1" --number_ios="$2" --size=32M --direct=1 \
			--ioengine=io_uring --norandommap --output=/tmp/fio.io "${@:3}" || fail "fio: $(</tmp/fio.io)"
		counted "$CTRL"
		for key in "${!COUNT[@]}"; do DID[$op-$key]=$((COUNT[$key] - ${before[$key]:-0})); done
	done
	progress "$1: reads: $(told reads), writes: $(told writes)"
}
told() {
	local key
	for key in posts doorbells signalled copies registrations invalidations; do printf '%s %s ' "${DID[$1-$key]}" "$key"; done
}
# is KEY NUMBER, is KEY LEAST-MOST
is() {
	local n=${DID[$1]}
	[ "$n" -ge "${2%-*}" ] && [ "$n" -le "${2#*-}" ] || fail "$1 is $n, not $2"
}

# Small reads are a work request each, few of which ask for a completion; small writes
# go in the capsule.
lean() {
	by || return
	io 4096 200
	is reads-posts 200-205
	is reads-copies 200-205
	is reads-registrations 0-5
	is reads-signalled 1-60
	is writes-posts 200-205
	is writes-registrations 0-5
	# Longer ones have a region.
	io 16384 100
	is reads-copies 0-5
	is reads-registrations 100-105
	# One more where the answer was seen before the completion of what it answers.
	is reads-posts 200-305
	is writes-registrations 100-105
	disconnects
}

# data POLICY...: what is written is what is read, and what the memory mode counts.
data() {
	by "$@" || return
	fio_run data --rw=randrw --bsrange=512-256k --blockalign=512 --iodepth=16 --size=3M --ioengine=libaio --direct=1
	io 4096 100
	case "$*" in
	*memory=copy* | *copy_threshold=8192*) is reads-copies 100-105 ;;
	*memory=cached*copy_threshold=0*) is reads-mr_hits 80-100 ;;
	*memory=cached*) is reads-copies 100-105 ;;
	*memory=register* | *memory=fast* | *copy_threshold=0*)
		is reads-copies 0
		is reads-registrations 100-105
		is reads-invalidations 100-105
		;;
	esac
	case "$*" in
	# REG_MR, SEND and LOCAL_INV, each with its own doorbell and completion.
	*memory=register* | *memory=fast_waited*)
		is reads-posts 300-310
		is reads-doorbells 300-620
		;;
	*memory=fast*) is reads-posts 200-305 ;;
	esac
	io 32768 50
	[[ $* != *memory=copy* ]] || is reads-copies 50-55
	disconnects
}

# mrs: memory regions of the host's device.
mrs() { rdma resource show | sed -n 's/.*: rxea: .* mr \([0-9]*\).*/\1/p'; }

mrs_are() { [ "$(mrs)" = "$1" ]; }

# hits: a buffer that comes again is registered once; then a command is one SEND.
hits() {
	local op before
	before=$(mrs)
	by memory=cached || return
	io 65536 200
	for op in reads writes; do
		is "$op-mr_hits" 180-200
		# Each queue has its own, and the page cache may look at the disk, too.
		is "$op-mr_misses" 1-24
		is "$op-registrations" 1-24
		is "$op-invalidations" 0
		is "$op-evictions" 0
		is "$op-posts" 200-250
	done
	# Short ones do not go through it.
	io 4096 100
	is reads-copies 100-110
	is reads-mr_hits 0-4
	is writes-mr_hits 0-4
	disconnects
	wait_for 10 mrs_are "$before" || fail "$(mrs) regions, not $before"
}

# evicts ENTRIES: more buffers than entries.
evicts() {
	by memory=cached copy_threshold=0 "mr_cache_entries=$1" || return
	fio_run evicts --rw=randrw --bsrange=512-32k --blockalign=512 --iodepth=32 --size=8M --ioengine=libaio --direct=1
	counted "$CTRL"
	[ "${COUNT[evictions]}" -ge 30 ] || fail "${COUNT[evictions]} evictions"
	# Each miss is followed by one at most, and some have not come back.
	[ "${COUNT[evictions]}" -le "${COUNT[registrations]}" ] || fail "${COUNT[evictions]} evictions, ${COUNT[registrations]} registrations"
	progress "$1 entries: ${COUNT[mr_hits]} hits, ${COUNT[mr_misses]} misses, ${COUNT[evictions]} evictions, ${COUNT[registrations]} registrations"
	# One buffer fits.
	io 65536 100
	is reads-mr_hits 50-100
	disconnects
}

# vectored ENTRIES SEED HOW: 300 requests by the program of that name, as HOW has it.
vectored() {
	local said
	by memory=cached copy_threshold=0 "mr_cache_entries=$1" || return
	said=$(vectors "$DISK" 300 "$2" "$3" 2>&1) || fail "$said"
	counted "$CTRL"
	progress "$said; ${COUNT[mr_hits]} hits, ${COUNT[mr_misses]} misses, ${COUNT[evictions]} evictions"
}

# fresh ENTRIES SEED: memory that goes while entries still have it, in pieces that lie
# in the same pages otherwise each time.
fresh() {
	vectored "$1" "$2" fresh || return
	[ "${COUNT[mr_misses]}" -gt 100 ] || fail "${COUNT[mr_misses]} misses"
	disconnects
}

# again ENTRIES SEED: memory that comes again, in eight vectors each way, with other
# data each time.
again() {
	vectored "$1" "$2" again || return
	[ "${COUNT[mr_hits]}" -ge 200 ] || fail "${COUNT[mr_hits]} hits"
	disconnects
}

# files: the page cache's pages: written, dropped, truncated, and read again, into others.
files() {
	local n
	by memory=cached mr_cache_entries=64 copy_threshold=0 || return
	modprobe ext4 && mkfs.ext4 -q -F "$DISK" >/dev/null && mkdir -p "$AT" && mount "$DISK" "$AT" || { fail "no file system" && return; }
	for n in {1..8}; do
		head -c 3M /dev/urandom >/tmp/file.want && cp /tmp/file.want "$AT/file" && sync || fail "write $n"
		echo 3 >/proc/sys/vm/drop_caches
		cmp /tmp/file.want "$AT/file" || fail "read $n"
		# The half that is cut off stays with the entries.
		truncate -s 1536K "$AT/file" && truncate -s 3M "$AT/file" && sync
		echo 3 >/proc/sys/vm/drop_caches
		truncate -s 1536K /tmp/file.want && truncate -s 3M /tmp/file.want
		dd if="$AT/file" bs=256k iflag=direct status=none | cmp /tmp/file.want - || fail "read $n, cut off"
		[ $((n % 3)) -ne 0 ] || rm "$AT/file"
	done
	umount "$AT" || fail "umount"
	e2fsck -fn "$DISK" >/tmp/e2fsck 2>&1 || fail "$(</tmp/e2fsck)"
	rm -f /tmp/file.want
	disconnects
}

# ends: a cache goes with its queue, also during I/O.
ends() {
	local before n
	before=$(mrs)
	by memory=cached copy_threshold=0 || return
	fio_start ends --rw=randrw --bsrange=512-256k --blockalign=512 --size=16M --iodepth=32 --ioengine=libaio --direct=1 --loops=4
	for n in 1 2 3; do
		flows "$DISK" || fail "no I/O"
		# On a machine that is too busy to answer in time it may have been connected anew meanwhile.
		wait_for 30 ctrl_is "$CTRL" live && nvme reset "/dev/$CTRL" >/dev/null && wait_for 20 ctrl_is "$CTRL" live || fail "reset $n"
	done
	fio_wait ends 120
	io 65536 50
	is reads-mr_hits 30-50
	fio_to_error
	disconnects
	wait_for 60 fails_over || fail "what was under way has not ended"
	wait_for 10 mrs_are "$before" || fail "$(mrs) regions, not $before"
}

# signals EVERY FROM-TO: of 200 small reads at depth 8, on two queues, each of which counts for itself.
signals() {
	by "signal_every=$1" || return
	io 4096 200 --iodepth=8
	is reads-signalled "$2"
	disconnects
}

# together: requests that come together go with few doorbells.
together() {
	by || return
	io 4096 512 --iodepth=32 --iodepth_batch_submit=16 --iodepth_batch_complete_min=16
	is reads-posts 512-520
	# Receives are posted with doorbells of their own, as answers come.
	DID[reads-rung]=$((DID[reads-doorbells] - DID[reads-recv_doorbells]))
	is reads-rung 32-128
	disconnects
}

# lanes: that many I/O queues.
lanes() {
	by lanes=1 lock=global || return
	[ "$(cat "/sys/class/nvme/$CTRL/queue_count")" = 2 ] || fail "queue_count $(cat "/sys/class/nvme/$CTRL/queue_count")"
	fio_run lanes --rw=randrw --bs=4k --iodepth=16 --numjobs=2 --offset_increment=8M --size=4M --ioengine=libaio --direct=1
	disconnects
}

# naive: the preset works as well.
naive() {
	needs_rivet
	echo naive >"$HOST/host_policy" && a_target && connects || return
	[ "$(cat "/sys/class/nvme/$CTRL/queue_count")" = 2 ] || fail "queue_count $(cat "/sys/class/nvme/$CTRL/queue_count")"
	fio_run naive --rw=randrw --bsrange=512-256k --blockalign=512 --iodepth=32 --numjobs=2 --offset_increment=16M --size=8M \
		--ioengine=libaio --direct=1
	nvme reset "/dev/$CTRL" >/dev/null && wait_for 20 ctrl_is "$CTRL" live || fail "reset"
	fio_run naive-after --rw=randrw --bs=16k --iodepth=8 --size=2M --ioengine=libaio --direct=1
	disconnects
}

# refused TEXT KNOB=VALUE...: a policy that is not for NVMe.
refused() {
	local text=$1
	needs_rivet
	by_policy "${@:2}" && a_target || return
	# shellcheck disable=SC2086 # words
	! connect_to $NQN $AT_FIRST || fail "it connects"
	dmesg | grep -F "$text" | grep -q allowed: || fail "the log does not say: $text"
	no_ctrls || fail "a controller is left"
	[ "$(cat "$P/p/users")" = 0 ] || fail "the policy is in use"
}

# no_policy: a name of none.
no_policy() {
	needs_rivet
	! echo nobody 2>/dev/null >"$HOST/host_policy" || fail "a policy that is not there is taken"
	[ "$(cat "$HOST/host_policy")" = default ] || fail "host_policy is $(cat "$HOST/host_policy")"
}

# live: moderation is turned while the controller is connected.
live() {
	local mode
	by || return
	fio_start live --rw=randrw --bsrange=512-64k --blockalign=512 --size=16M --iodepth=16 --ioengine=libaio --direct=1
	flows "$DISK" || fail "no I/O"
	for mode in interrupt coalesce busy adaptive interrupt busy coalesce adaptive; do
		echo "$mode" >"$P/p/completion" || fail "$mode"
		flows "$DISK" || fail "no I/O with $mode"
	done
	fio_wait live 120
	disconnects
}

# rests: without requests nobody polls.
rests() {
	local before
	by "completion=$1" || return
	fio_run rests --rw=randrw --bs=4k --iodepth=16 --size=1M --ioengine=libaio --direct=1
	nap 2
	counted "$CTRL"
	before=${COUNT[polls]}
	nap 3
	counted "$CTRL"
	# What keeps the connection alive is on one of the CPUs, too.
	[ $((COUNT[polls] - before)) -lt 100 ] || fail "$((COUNT[polls] - before)) polls in 3 s"
	disconnects
}

# shown: the queues are in debugfs as long as they are connected.
shown() {
	by || return
	local dir=/sys/kernel/debug/rivet/nvme/$CTRL
	[ -e "$dir/queue0" ] && [ -e "$dir/queue1" ] || fail "it is not shown"
	disconnects
	wait_for 5 [ ! -e "$dir" ] || fail "it is still shown"
}

# claims: the name rdma, unless nvme-rdma has it.
claims() {
	needs_rivet
	modprobe nvme_rdma || { fail "nvme_rdma" && return; }
	! echo 1 2>/dev/null >"$HOST/claim_rdma" || fail "it claims what nvme-rdma has"
	dmesg | grep -q "claim_rdma: nvme-rdma is loaded" || fail "the log does not say why"
	modprobe -r nvme_rdma
	echo 1 >"$HOST/claim_rdma" || { fail "it does not claim" && return; }
	# nvme-cli has the kernel load nvme-rdma, whose name is taken then.
	a_target && NVME_TRANSPORT=rdma connects || return
	[ -e "/sys/kernel/debug/rivet/nvme/$CTRL" ] || fail "somebody else has connected"
	echo 0 >"$HOST/claim_rdma"
	fio_run claimed --rw=randrw --bs=4k --iodepth=8 --size=2M --ioengine=libaio --direct=1
	nvme reset "/dev/$CTRL" >/dev/null && wait_for 20 ctrl_is "$CTRL" live || fail "it does not reset once the name is given back"
	disconnects
	for n in 2 x -1 ""; do ! echo "$n" 2>/dev/null >"$HOST/claim_rdma" || fail "claim_rdma takes '$n'"; done
}

after() {
	! mountpoint -q "$AT" || umount "$AT" || umount -l "$AT"
	rm -rf "$AT"
	[ ! -d $HOST ] || echo 0 >"$HOST/claim_rdma"
	! grep -q ^nvme_rdma /proc/modules || [ "$NVME_TRANSPORT" = rdma ] || modprobe -r nvme_rdma
}

nvme_tests lean "data memory=auto copy_threshold=8192" "data memory=auto copy_threshold=0" "data memory=copy" "data memory=fast" \
	"data memory=fast_waited" "data memory=register" "signals 1 200-210" "signals 16 11-30" "signals 0 5-60" together lanes naive \
	"data memory=cached" "data memory=cached copy_threshold=0" hits "evicts 8" "evicts 64" "fresh 16 1" "fresh 1024 2" "again 1024 3" files ends \
	"refused mr_cache_entries memory=cached mr_cache_entries=0" "refused lock=global lock=global lanes=2" no_policy live \
	"rests adaptive" "rests coalesce" shown claims
