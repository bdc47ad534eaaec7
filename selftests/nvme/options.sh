#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The ways to connect: options, what is refused, IPv6, with authentication.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"

# options NAME=VALUE... OPTION...: connects with these options; sysfs says so.
options() {
	a_target param_max_queue_size=256 && connects "$@" || return
	fio_run options --rw=randrw --bsrange=512-64k --size=2M --iodepth=16 --ioengine=libaio --direct=1
	[ "$(cat "/sys/class/nvme/$CTRL/reconnect_delay")" != "" ] || fail "no reconnect_delay"
	case $1 in
	# No more than there are CPUs.
	--nr-io-queues=*) [ "$(cat "/sys/class/nvme/$CTRL/queue_count")" = $((${1#*=} < $(nproc) ? ${1#*=} + 1 : $(nproc) + 1)) ] || fail "$(cat "/sys/class/nvme/$CTRL/queue_count") queues" ;;
	--queue-size=*) [ "$(cat "/sys/class/nvme/$CTRL/sqsize")" = $((${1#*=} - 1)) ] || fail "sqsize $(cat "/sys/class/nvme/$CTRL/sqsize")" ;;
	--reconnect-delay=*) [ "$(cat "/sys/class/nvme/$CTRL/reconnect_delay")" = "${1#*=}" ] || fail "reconnect_delay $(cat "/sys/class/nvme/$CTRL/reconnect_delay")" ;;
	--ctrl-loss-tmo=*) [[ $(cat "/sys/class/nvme/$CTRL/ctrl_loss_tmo") == "${1#*=}" || ${1#*=} = -1 ]] || fail "ctrl_loss_tmo $(cat "/sys/class/nvme/$CTRL/ctrl_loss_tmo")" ;;
	--fast_io_fail_tmo=*) [ "$(cat "/sys/class/nvme/$CTRL/fast_io_fail_tmo")" = "${1#*=}" ] || fail "fast_io_fail_tmo $(cat "/sys/class/nvme/$CTRL/fast_io_fail_tmo")" ;;
	esac
	disconnects
}

# bad_options TEXT OPTION...: the connect is refused, and nothing is left.
bad_options() {
	local text=$1
	shift
	a_target || return
	# shellcheck disable=SC2086 # words
	! connect_to $NQN $AT_FIRST "$@" || { fail "it connects with $*" && return; }
	[[ $SAID == *"$text"* ]] || fail "it says: $SAID"
	no_ctrls || fail "a controller is left"
	connects && disconnects
}

# Polled queues are for who polls, others do without.
polled() {
	a_target && connects --nr-io-queues=2 --nr-poll-queues=2 || return
	[ "$(cat "/sys/class/nvme/$CTRL/queue_count")" = 5 ] || fail "$(cat "/sys/class/nvme/$CTRL/queue_count") queues"
	fio_run polled --rw=randrw --bsrange=512-64k --size=4M --iodepth=8 --ioengine=io_uring --hipri --direct=1
	fio_run both --rw=randrw --bsrange=512-64k --size=2M --iodepth=8 --ioengine=io_uring --direct=1
	disconnects
}

unknown_subsystem() {
	a_target || return
	# shellcheck disable=SC2086 # words
	! connect_to $NQN:none $AT_FIRST || fail "it connects to a subsystem that is none"
	no_ctrls || fail "a controller is left"
	# shellcheck disable=SC2086 # words
	! connect_to $NQN -a 10.77.0.2 -s 4421 -w 10.77.0.1 || fail "it connects to a port that is none"
	no_ctrls || fail "a controller is left"
	connects && disconnects
}

twice() {
	a_target && connects || return
	# shellcheck disable=SC2086 # words
	! connect_to $NQN $AT_FIRST || fail "a second time without being told"
	# shellcheck disable=SC2086 # words
	connect_to $NQN $AT_FIRST --duplicate-connect || fail "duplicate-connect: $SAID"
	fio_run twice --rw=randrw --bs=4k --size=1M --iodepth=4 --ioengine=libaio --direct=1
	disconnects
	wait_for 20 no_ctrls || fail "a controller is left"
}

ipv6() {
	disk disk0 64 && subsystem "$NQN" && namespace "$NQN" 1 /dev/disk0 && port 6 fd77::2 && offer 6 "$NQN" || { fail "no target" && return; }
	connect_to "$NQN" -a fd77::2 -s 4420 -w fd77::1 || { fail "connect: $SAID" && return; }
	wait_for 20 find_disk "$NQN" || { fail "no disk" && return; }
	fio_run ipv6 --rw=randrw --bsrange=512-256k --size=4M --iodepth=8 --ioengine=libaio --direct=1
	disconnects
}

# auth [KEY=VALUE...] [both]: DH-HMAC-CHAP, and no entry without the key.
auth() {
	local key ckey="" pair host=$N/hosts/$HOSTNQN
	[[ " $* " != *" both "* ]] || ckey=$(nvme gen-dhchap-key -n "$NQN")
	key=$(nvme gen-dhchap-key -n "$HOSTNQN") || { fail "no key" && return; }
	a_target && echo 0 >"$N/subsystems/$NQN/attr_allow_any_host" && mkdir "$host" && echo "$key" >"$host/dhchap_key" || return
	for pair; do [[ $pair != *=* ]] || echo "${pair#*=}" >"$host/${pair%%=*}" || fail "$pair"; done
	[ -z "$ckey" ] || echo "$ckey" >"$host/dhchap_ctrl_key" || fail "the controller's key"
	ln -s "$host" "$N/subsystems/$NQN/allowed_hosts/$HOSTNQN"
	# Who has another key gets no answer any more, for so long.
	limits admin_timeout=10
	# shellcheck disable=SC2086 # words
	! connect_to $NQN $AT_FIRST || fail "it connects without a key"
	# shellcheck disable=SC2086 # words
	! connect_to $NQN $AT_FIRST -S "$(nvme gen-dhchap-key -n $HOSTNQN)" || fail "it connects with another key"
	no_ctrls || fail "a controller is left"
	connects -S "$key" ${ckey:+-C "$ckey"}
	fio_run auth --rw=randrw --bs=4k --size=1M --iodepth=4 --ioengine=libaio --direct=1
	nvme reset "/dev/$CTRL" || fail "reset"
	wait_for 30 ctrl_is "$CTRL" live || fail "it does not come back from a reset"
	fio_run again --rw=randrw --bs=4k --size=1M --iodepth=4 --ioengine=libaio --direct=1
	disconnects
}

nvme_tests "options --nr-io-queues=1" "options --nr-io-queues=4" "options --nr-write-queues=2" "options --queue-size=16" \
	"options --queue-size=256" "options --keep-alive-tmo=1" "options --reconnect-delay=3" "options --ctrl-loss-tmo=20" \
	"options --ctrl-loss-tmo=-1" "options --fast_io_fail_tmo=5" "options --tos=32" "options --disable-sqflow" polled \
	"bad_options address --host-traddr=10.99.0.1" "bad_options invalid --queue-size=1" unknown_subsystem twice ipv6 \
	auth "auth dhchap_hash=hmac(sha512)" "auth dhchap_dhgroup=ffdhe2048" "auth both"
