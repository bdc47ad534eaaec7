# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# CPU time of a connection on which nothing arrives, over 5 s, more than the
# machine takes without one: an operation is under way, and the network holds
# all packets back for longer than that. As the kernel tells idle time in units of
# 10 ms, it is measured over 10 s.

mtus=9000 metric=cpu unit="ms in 5 s" other_name=busy
goal="rivet <= 5"
requires="policies end:policy"

setup() {
	modprobe sch_netem && rivet_server policy=default timeout_ms=60000 &&
		policy adaptive default completion=adaptive &&
		policy busy default completion=busy
}

# idle_ms: of all CPUs since boot.
idle_ms() {
	local idle
	read -r _ idle </proc/uptime && echo "$((10#${idle/./} * 10))"
}

# cpu_ms: that all CPUs were busy, of 5 s.
cpu_ms() {
	local idle now
	idle=$(idle_ms) now=${EPOCHREALTIME/./}
	nap 10
	calc "(((${EPOCHREALTIME/./} - $now) / 1000) * $(nproc) - ($(idle_ms) - $idle)) / 2"
}

connected() { # POLICY
	local end=$PERF/client state=running
	# Changed and not replaced under traffic, which breaks QPs of rxe.
	tc -n a qdisc add dev va root netem limit 10000 || return
	in_a /rivet/bench/set-end client role=client address="$SERVER" op=read size=4096 submitters=1 \
		policy="$1" duration_ms=60000 timeout_ms=60000 start=1 || return
	nap 0.3
	tc -n a qdisc change dev va root netem delay 60s limit 10000 || return
	nap 0.3
	MS=$(cpu_ms)
	read -r state <"$end/state"
	tc -n a qdisc del dev va root
	rmdir "$end"
	[ "$state" = running ]
}

round() {
	local without rivet other=-
	without=$(cpu_ms)
	connected adaptive && rivet=$(calc "$MS - $without") || return
	if [ "$CLOCK" = threads ]; then
		connected busy && other=$(calc "$MS - $without") || return
	fi
	pair "$rivet" "$other"
}
