# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034 # variables for the scripts that source this
#
# For the tests in selftests/nvme, beside qemu/guest/nvme.sh. They are tried against
# nvme-rdma (NVME_TRANSPORT=rdma); what is Rivet's alone calls "needs_rivet".
#
# The programs (mkfs, dmsetup) are in the whole guest root: qemu/vm run --root.

# shellcheck source=selftests/lib.sh
. "${BASH_SOURCE[0]%/*}/../lib.sh"
# shellcheck source=qemu/guest/nvme.sh
. "$RIVET_AT/guest/nvme.sh"

PARAMETERS=/sys/module/nvme_core/parameters

case $NVME_TRANSPORT in
rdma) ;;
rivet) has_rivet || LACKING="this module has no NVMe host" ;;
*)
	echo "NVME_TRANSPORT=$NVME_TRANSPORT: it can be rivet or rdma" >&2
	exit 1
	;;
esac

needs rxe network
[ -z "${WIRE-}" ] || [ -z "$ALONE" ] || LACKING="this kernel has no rules of routing"

# needs_rivet: a test that asks for what only Rivet's host has.
needs_rivet() { [ "$NVME_TRANSPORT" = rivet ] || skip "it is about Rivet's NVMe host, and this is nvme-$NVME_TRANSPORT"; }

# need_tools COMMAND...
need_tools() {
	local tool
	for tool; do
		command -v "$tool" >/dev/null || LACKING="$tool is not here: this runs with qemu/vm run --root"
	done
	[ -z "$IN_TEST" ] || [ -z "$LACKING" ] || skip "$LACKING"
}

# ---- targets and hosts ------------------------------------------------------

# a_target [MIB] [KEY=VALUE...]: the one that most tests want: a subsystem with one
# namespace on a port of the first path, which takes these settings.
# shellcheck disable=SC2120 # some scripts have no arguments for it
a_target() {
	local mib=64
	[[ ${1-} == *=* ]] || [ $# -eq 0 ] || { mib=$1 && shift; }
	disk disk0 "$mib" && subsystem $NQN && namespace $NQN 1 /dev/disk0 && port 1 "$SERVER" "$@" && offer 1 $NQN && return
	fail "there is no target"
	exit 1
}

# connects [OPTION...]: to the target of a_target; DISK is what it has.
# shellcheck disable=SC2120 # some scripts have no arguments for it
connects() {
	# shellcheck disable=SC2086 # words
	if ! connect_to $NQN $AT_FIRST "$@"; then
		fail "connect: $SAID"
		exit 1
	fi
	wait_for 20 find_disk $NQN || { fail "no disk of $NQN has come" && exit 1; }
}

# disconnects [NQN]
# shellcheck disable=SC2120 # some scripts have no arguments for it
disconnects() { nvme disconnect -n "${1:-$NQN}" >/dev/null || fail "disconnect"; }

# limits KEY=VALUE...: of nvme core (io_timeout, admin_timeout), until the test's end.
limits() {
	local pair
	for pair; do echo "${pair#*=}" >"$PARAMETERS/${pair%%=*}" || fail "$pair was refused"; done
}

# ---- load -------------------------------------------------------------------

# fio_run NAME OPTION...: on $DISK; fails the test unless all of it was done, and
# what was written is there.
fio_run() {
	local name=$1 out=/tmp/fio.$1
	shift
	fio --name="$name" --filename="$DISK" --verify=crc32c --verify_fatal=1 --verify_dump=0 --group_reporting \
		--output="$out" "$@" >"$out.err" 2>&1 && return
	fail "fio $name $*: status $?"
	grep -vE '^ *(lat|clat|slat|bw|iops|cpu|IO depths|submit|complete) ' "$out" "$out.err" | head -n 20
	return 1
}

# fio_start NAME OPTION..., fio_wait NAME: the same beside the test. FIO is its process.
fio_start() {
	rm -f "/tmp/fio.$1.status"
	{
		fio_run "$@" >"/tmp/fio.$1.said"
		echo $? >"/tmp/fio.$1.status"
	} &
}
fio_over() { [ -s "/tmp/fio.$1.status" ]; }
fio_wait() { # NAME SECONDS
	if ! wait_for "$2" fio_over "$1"; then
		fail "fio $1 is not over after $2 s"
	elif [ "$(<"/tmp/fio.$1.status")" -ne 0 ]; then
		fail "$(cat "/tmp/fio.$1.said")"
	fi
}

# moved DISK: how many requests have been done.
moved() {
	local stat
	read -r -a stat <"/sys/block/${1#/dev/}/stat" && echo $((stat[0] + stat[4]))
}
moves() { [ "$(moved "$1")" -gt "$2" ]; }

# flows DISK [SECONDS]: requests are done.
flows() {
	local from
	from=$(moved "$1") && wait_for "${2:-30}" moves "$1" $((from + 20))
}

# What a connection that is to be lost soon is given.
SHORT="--reconnect-delay=1 --keep-alive-tmo=2"

# load LOOPS: writes and reads, beside the test; fio_wait load tells how it went.
load() {
	fio_start load --rw=randrw --bsrange=512-128k --size=32M --iodepth=16 --ioengine=libaio --direct=1 --loops="$1"
	flows "$DISK" || fail "no I/O"
}

# fio_to_error: a load that is expected to end in an error; fails_over: it has.
fio_to_error() {
	rm -f /tmp/fio.error
	{
		fio --name=error --filename="$DISK" --rw=randrw --bs=4k --iodepth=16 --ioengine=libaio --direct=1 --size=32M \
			--time_based --runtime=3600 --output=/dev/null >/tmp/fio.error.said 2>&1
		echo $? >/tmp/fio.error
	} &
	flows "$DISK" || fail "no I/O"
}
fails_over() { [ -s /tmp/fio.error ] && [ "$(</tmp/fio.error)" -ne 0 ]; }

no_jobs() { [ -z "$(jobs -rp)" ]; }

# ---- reporting --------------------------------------------------------------

# objects: all RDMA objects, per device, but for CQs of nvme-rdma and nvmet-rdma: the
# core keeps these for others as long as there is the device.
objects() {
	local line
	while read -r _ line; do
		if [ "$NVME_TRANSPORT" = rdma ] || [ -n "$ALONE" ] || [[ $line != rxe[ac]* ]]; then
			line=${line/ cq +([0-9]) / }
		fi
		echo "$line"
	done < <(rdma resource show) | sort
}

# by_policy KNOB=VALUE...: controllers connect by the policy p, with these knobs and otherwise
# like "default".
HOST=/sys/kernel/config/rivet/nvme
by_policy() {
	local knob
	needs_rivet
	mkdir "$P/p" || return
	for knob; do echo "${knob#*=}" >"$P/p/${knob%%=*}" || fail "$knob"; done
	echo p >"$HOST/host_policy" || fail "host_policy"
}
no_policy_left() {
	[ ! -d "$HOST" ] || echo default >"$HOST/host_policy"
	[ ! -d "$P/p" ] || rmdir "$P/p" || echo "the policy is left"
}

restore() {
	local pid
	for pid in $(jobs -p); do kill -KILL "$pid"; done 2>/dev/null
	renetwork
	no_stall
	all_gone
	after
	no_policy_left
	no_targets
	limits io_timeout=30 admin_timeout=60
	dmesg -C
}
# What a script undoes besides.
after() { :; }
# What it did to the network.
renetwork() { :; }

# nvme_tests [PATHS] TEST...: "tests", on a machine that has what they need.
nvme_tests() {
	local paths=1
	[[ $1 != [1-9] ]] || { paths=$1 && shift; }
	[ "$paths" = 1 ] || [ -z "$ALONE" ] || LACKING="this kernel has no rules of routing"
	if [ -n "$LACKING" ]; then
		none_of "$@"
		exit 0
	fi
	trap 'machine_down $? '"$paths" EXIT
	machine_up "$paths" || exit 1
	OBJECTS=$(objects)
	tests "$@"
}

# none_of TEST...: this machine lacks what they all need.
none_of() {
	local test n=0
	echo "KTAP version 1"
	echo "1..$#"
	for test; do
		n=$((n + 1))
		echo "ok $n $test # SKIP $LACKING"
	done
}

# machine_up PATHS: BELOW, if a script sets it, is a module that Rivet finds loaded.
machine_up() {
	modprobe_all ib_uverbs rdma_ucm veth rdma_rxe sch_netem nvme_fabrics nvmet && modprobe null_blk nr_devices=0 || return
	[ -z "${BELOW-}" ] || insmod "$RIVET_AT/$BELOW.ko" || return
	if [ "$NVME_TRANSPORT" = rivet ]; then
		rivet_load || return
	else
		modprobe nvme_rdma || return
	fi
	if [ "${RIVET_PAIR-}" = a ]; then pair_up; else network_up "$1"; fi
}

# machine_down STATUS PATHS: everything goes, and what cannot go was left in use.
machine_down() {
	local status=$1 module
	if [ "${RIVET_PAIR-}" = a ]; then pair_down; else network_down "$2"; fi
	[ "$NVME_TRANSPORT" != rivet ] || rivet_unload || status=1
	[ -z "${BELOW-}" ] || rmmod "$BELOW" || status=1
	for module in ext4 xfs nvme_rdma nvmet_rdma nvmet null_blk dm_mod nvme_fabrics nvme_core rdma_rxe veth bridge; do
		! grep -q "^$module " /proc/modules || modprobe -r "$module" || status=1
	done
	exit "$status"
}
