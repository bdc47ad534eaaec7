# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034 # variables for the scripts that source this
#
# For scripts in the guest, and for tests on a real machine: two ends, and the
# device that each of them has. DEVICE says which:
#
#   rxe   soft-RoCE (the default). The ends cross a network:
#           namespace a: va 10.77.0.1/24 fd77::1/64, rxea
#           namespace b: vb 10.77.0.2/24 fd77::2/64, rxeb
#         Ends in one network namespace would not do: rxe hands packets for a local
#         address over without IP, qdisc or device.
#   siw   soft-iWARP. Its sockets belong to the namespace of the task that connects,
#         which for the kernel's threads is the first one. So a and b are names of
#         that, with the same interfaces, siwa and siwb, and TCP goes through lo.
#   NAME  a device that is there: both ends are on it, at the address of its
#         interface, and a and b are names of the namespace that the script is in.
#
# HAS lists what this is able to, for "needs":
#   links       devices can be deleted and made again
#   network     what is between the ends can be cut, delayed and changed
#   namespaces  each end has one of its own
#   rxe         it is soft-RoCE, with its ways
#   uc ud imm atomics  what not every device does

: "${DEVICE:=rxe}"
# Where the module, bin/ and the rest are.
: "${RIVET_AT:=/rivet}"

choose_device() {
	SERVER=10.77.0.2 SERVER6=fd77::2
	case $DEVICE in
	rxe) DEV_A=rxea DEV_B=rxeb HAS="links network namespaces rxe uc ud imm atomics" ;;
	siw) DEV_A=siwa DEV_B=siwb HAS=links ;;
	*)
		DEV_A=$DEVICE DEV_B=$DEVICE HAS=""
		if [ ! -d "/sys/class/infiniband/$DEVICE" ]; then
			echo "DEVICE=$DEVICE: there is no such RDMA device; there are: $(ls /sys/class/infiniband 2>&1)" >&2
			return 1
		fi
		# iWARP's are 4, RNIC.
		[[ $(<"/sys/class/infiniband/$DEVICE/node_type") == 4* ]] || HAS="uc ud imm"
		[[ $(ibv_devinfo -v -d "$DEVICE" 2>/dev/null) != *ATOMIC_[HG]* ]] || HAS+=" atomics"
		NETDEV=$(rdma link show "$DEVICE/1" | sed -n 's/.* netdev \([^ ]*\).*/\1/p')
		SERVER=$(ip -4 -o addr show dev "$NETDEV" scope global | awk '{ sub("/.*", "", $4); print $4; exit }')
		SERVER6=$(ip -6 -o addr show dev "$NETDEV" scope global | awk '{ sub("/.*", "", $4); print $4; exit }')
		if [ -z "$SERVER" ]; then
			echo "DEVICE=$DEVICE: its interface '$NETDEV' has no IPv4 address" >&2
			return 1
		fi
		;;
	esac
	export DEVICE RIVET_AT
}

# has WORD: whether HAS has it.
has() { [[ " $HAS " == *" $1 "* ]]; }

modprobe_all() {
	local m
	for m; do modprobe "$m" || return 1; done
}

# rivet_load [PARAMETER=VALUE...]
# shellcheck disable=SC2120 # callers with arguments are elsewhere
rivet_load() {
	local deps
	deps=$(modinfo -F depends "$RIVET_AT/rivet.ko" | tr ',' ' ')
	# shellcheck disable=SC2086 # a list
	modprobe_all $deps && insmod "$RIVET_AT/rivet.ko" "$@"
}

# With COVERAGE, where code of Rivet was loaded is told with the results.
insmod() {
	command insmod "$@" || return
	[ -z "${COVERAGE-}" ] || [ "${1##*/}" != rivet.ko ] ||
		echo "module rivet $(</sys/module/rivet/sections/.text)" >"$RESULTS"
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

# gids_ready: waits until both devices are up and know their addresses.
gids_ready() {
	local n
	[ "$DEVICE" = rxe ] || return 0
	for n in "a ffff:0a4d:0001" "b ffff:0a4d:0002" \
		"a fd77:0000:0000:0000:0000:0000:0000:0001" "b fd77:0000:0000:0000:0000:0000:0000:0002"; do
		wait_for 10 gid_ready "rxe${n% *}" "${n#* }" && continue
		echo "rxe${n% *} has no GID ${n#* }" >&2
		return 1
	done
}

# device_up NAMESPACE: makes its device. Where it lives: rxe cannot be moved into a
# namespace later without losing its MAD agent, and rdma_cm with it.
device_up() { ip netns exec "$1" rdma link add "$DEVICE$1" type "$DEVICE" netdev "v$1"; }

# net_up: MTU= sets the size of a packet (1500), 9000 lets 4 KiB pass in one.
net_up() {
	local ns peer n=0
	choose_device || return 1
	modprobe_all ib_uverbs rdma_ucm || return 1
	for ns in a b; do
		if has namespaces; then
			ip netns add $ns && ip -n $ns link set lo up
		else
			ip netns attach $ns $$
		fi || return 1
	done
	[ -z "${NETDEV-}" ] || return 0
	modprobe veth || return 1
	case $DEVICE in
	rxe) modprobe rdma_rxe ;;
	# The stock kernel has none.
	siw) modprobe siw 2>/dev/null || insmod "$RIVET_AT/siw.ko" ;;
	esac || return 1
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
	for ns in a b; do device_up $ns || return 1; done
	gids_ready
}

# pair_up: on one of two machines, which are RIVET_PAIR, a and b: what net_up makes of
# namespaces, each of them is by itself.
pair_up() {
	local v=v$RIVET_PAIR n=1 peer=2 i
	[ "$RIVET_PAIR" = a ] || n=2 peer=1
	modprobe_all ib_uverbs rdma_ucm rdma_rxe virtio_pci virtio_net || return 1
	wait_for 10 compgen -G "/sys/class/net/[ev]*" >/dev/null
	# A test before may have named it.
	for i in /sys/class/net/e*; do
		[ ! -d "$i" ] || ip link set "${i##*/}" name "$v" mtu "${MTU:-9000}" || return 1
	done
	ip addr replace "10.77.0.$n/24" dev "$v" && ip addr replace "fd77::$n/64" dev "$v" nodad && ip link set "$v" up || return 1
	for i in "10.77.0.$peer" "fd77::$peer"; do
		ip neigh replace "$i" lladdr "52:54:00:77:00:0$peer" dev "$v" nud permanent
	done
	rdma link add "rxe$RIVET_PAIR" type rxe netdev "$v" || return 1
	wait_for 10 gid_ready "rxe$RIVET_PAIR" "ffff:0a4d:000$n"
}

pair_down() { rdma link delete "rxe$RIVET_PAIR" && ip link set "v$RIVET_PAIR" down; }

# other WORD: the first machine of a pair has this done with the other one: start (which
# waits for its "ready"), kill, stop, cont.
other() {
	local said=""
	if [ -z "${OTHER-}" ]; then
		stty -F /dev/ttyS3 raw -echo 115200
		exec {OTHER}<>/dev/ttyS3
	fi
	echo "$1" >&"$OTHER"
	read -r -t $((90 * SLOWER)) -u "$OTHER" said
	[ "$said" = "done" ] || { echo "the other machine: $1: '$said'" && return 1; }
}

net_down() {
	local ns
	if [ -z "${NETDEV-}" ]; then
		for ns in a b; do rdma link delete "$DEVICE$ns" 2>/dev/null; done
		ip -n a link delete va 2>/dev/null
	fi
	for ns in a b; do ip netns delete $ns; done
}
