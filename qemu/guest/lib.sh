# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# For scripts in the guest: two ends that really cross a network. Ends in one
# network namespace would not do: rxe hands packets for a local address over
# without IP, qdisc or device.
#
#   namespace a: va 10.77.0.1/24 fd77::1/64, rxea
#   namespace b: vb 10.77.0.2/24 fd77::2/64, rxeb

modprobe_all() {
	local m
	for m; do modprobe "$m" || return 1; done
}

# rivet_load [PARAMETER=VALUE...]
# shellcheck disable=SC2120 # callers with arguments are elsewhere
rivet_load() {
	local deps
	deps=$(modinfo -F depends /rivet/rivet.ko | tr ',' ' ')
	# shellcheck disable=SC2086 # a list
	modprobe_all $deps && insmod /rivet/rivet.ko "$@"
}

rivet_unload() { rmmod rivet; }

# Limits of time are so many times longer on a kernel that is so much slower.
SLOWER=${RIVET_SLOWER:-1}

# wait_for SECONDS COMMAND...: until COMMAND succeeds.
wait_for() {
	local end=$((SECONDS + $1 * SLOWER))
	shift
	until "$@"; do
		[ $SECONDS -le $end ] || return 1
		sleep 0.05
	done
}

# gid_ready DEVICE ADDRESS-AS-GID
gid_ready() {
	[ "$(cut -d: -f1 "/sys/class/infiniband/$1/ports/1/state" 2>/dev/null)" = 4 ] &&
		grep -qs "$2" "/sys/class/infiniband/$1/ports/1/gids/"*
}

mac_of() { ip netns exec "$1" cat "/sys/class/net/$2/address"; }

# net_up: MTU= sets the size of a packet (1500), 9000 lets 4 KiB pass in one.
net_up() {
	local ns peer n=0
	modprobe_all veth ib_uverbs rdma_ucm rdma_rxe || return 1
	for ns in a b; do
		ip netns add $ns
		ip -n $ns link set lo up
	done
	ip link add va mtu "${MTU:-1500}" netns a type veth peer name vb mtu "${MTU:-1500}" netns b || return 1
	for ns in a b; do
		n=$((n + 1))
		ip -n $ns addr add 10.77.0.$n/24 dev v$ns
		ip -n $ns addr add fd77::$n/64 dev v$ns nodad
		ip -n $ns link set v$ns up
	done
	# Neighbours are known from the start: no test waits for ARP.
	for ns in a b; do
		case $ns in
		a) peer=b n=2 ;;
		b) peer=a n=1 ;;
		esac
		ip -n $ns neigh replace 10.77.0.$n lladdr "$(mac_of $peer v$peer)" dev v$ns nud permanent
		ip -n $ns neigh replace fd77::$n lladdr "$(mac_of $peer v$peer)" dev v$ns nud permanent
	done
	# Made where it lives: rxe cannot be moved into a namespace later without
	# losing its MAD agent, and rdma_cm with it.
	for ns in a b; do
		ip netns exec $ns rdma link add rxe$ns type rxe netdev v$ns || return 1
	done
	for n in "a ffff:0a4d:0001" "b ffff:0a4d:0002" \
		"a fd77:0000:0000:0000:0000:0000:0000:0001" "b fd77:0000:0000:0000:0000:0000:0000:0002"; do
		wait_for 10 gid_ready "rxe${n% *}" "${n#* }" && continue
		echo "net_up: rxe${n% *} has no GID ${n#* }" >&2
		return 1
	done
}

net_down() {
	local ns
	for ns in a b; do rdma link delete rxe$ns 2>/dev/null; done
	ip -n a link delete va 2>/dev/null
	for ns in a b; do ip netns delete $ns; done
}
