# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034 # variables for the scripts that source this
#
# For what tests and benchmarks do with NVMe, beside lib.sh: targets (nvmet, the
# kernel's own), the network before them, and a host that connects to them.
# NVME_TRANSPORT says which host: "rivet", or "rdma", the kernel's nvme-rdma. It is
# rivet where the module has it.
#
# nvme-rdma and nvmet-rdma make their connections in the first network namespace, both
# of them. So that what they send crosses a network all the same, rules of routing
# come before the table of local addresses: to each end's address leads the
# other's interface, except for what has come in by its own. There are two paths:
#
#   host   va 10.77.0.1 fd77::1 rxea     target  vb 10.77.0.2 fd77::2 rxeb
#          vc 10.78.0.1 fd78::1 rxec             vd 10.78.0.2 fd78::2 rxed
#
# On a kernel without rules (ALONE=1), as the debug kernel, both ends are one device.
#
# With WIRE=1 a switch is between them, in a network namespace of its own, whose
# cables can be pulled. An interface that is set down itself is something else: rxe's
# QP 1 is in error for good once it has to send what no way is for.

shopt -s extglob

N=/sys/kernel/config/nvmet
NULLB=/sys/kernel/config/nullb
NQN=nqn.2026-01.test:subsystem
HOSTNQN=nqn.2026-01.test:host
HOSTID=11111111-2222-3333-4444-555555555555
AT_FIRST="-a 10.77.0.2 -s 4420 -w 10.77.0.1"
AT_SECOND="-a 10.78.0.2 -s 4420 -w 10.78.0.1"

# has_rivet: whether the module has an NVMe host.
has_rivet() { modinfo -F alias "$RIVET_AT/rivet.ko" 2>/dev/null | grep -qx nvme-rivet; }
if [ -z "${NVME_TRANSPORT-}" ]; then
	NVME_TRANSPORT=rdma
	! has_rivet || NVME_TRANSPORT=rivet
fi
export NVME_TRANSPORT

# ---- the network ------------------------------------------------------------

# path_of NUMBER: its interfaces, addresses and tables, in variables of the caller.
path_of() {
	case $1 in
	1) host=va target=vb net=10.77.0 net6=fd77: ;;
	2) host=vc target=vd net=10.78.0 net6=fd78: ;;
	esac
}

rxe_of() { echo "rxe${1#v}"; }

ALONE=""
[ -n "$(ip rule 2>/dev/null)" ] || ALONE=1

# path_alone NUMBER: all addresses on the host's interface.
path_alone() {
	local host target net net6 n
	path_of "$1"
	ip link add "$host" mtu "${MTU:-9000}" type veth peer name "$target" mtu "${MTU:-9000}" || return
	for n in 1 2; do ip addr add "$net.$n/32" dev "$host" && ip addr add "$net6:$n/128" dev "$host" nodad || return; done
	ip link set "$host" up && ip link set "$target" up && rdma link add "$(rxe_of "$host")" type rxe netdev "$host" &&
		path_gids "$1"
}

# path_rules add|del NUMBER
path_rules() {
	local host target net net6 n=$((100 * $2)) rule
	path_of "$2"
	for rule in "10 to $net.1 iif $host lookup local" "10 to $net.2 iif $target lookup local" \
		"20 to $net.1 lookup $((n + 1))" "20 to $net.2 lookup $((n + 2))"; do
		# shellcheck disable=SC2086 # words
		ip rule "$1" pref $rule || return
		rule=${rule/"$net."/"$net6:"}
		# shellcheck disable=SC2086 # words
		ip -6 rule "$1" pref $rule || return
	done
}

# path_routes NUMBER: what interfaces forget that were down.
path_routes() {
	local host target net net6 n=$((100 * $1))
	path_of "$1"
	ip addr replace "$net.1/32" dev "$host" && ip addr replace "$net.2/32" dev "$target" &&
		ip addr replace "$net6:1/128" dev "$host" nodad && ip addr replace "$net6:2/128" dev "$target" nodad &&
		ip route replace "$net.1" dev "$target" src "$net.2" table $((n + 1)) &&
		ip route replace "$net.2" dev "$host" src "$net.1" table $((n + 2)) &&
		ip -6 route replace "$net6:1" dev "$target" src "$net6:2" table $((n + 1)) &&
		ip -6 route replace "$net6:2" dev "$host" src "$net6:1" table $((n + 2)) || return
	path_neighbours "$host" "$net.2" "$net6:2" "$target" && path_neighbours "$target" "$net.1" "$net6:1" "$host"
}

# path_neighbours INTERFACE ADDRESS ADDRESS6 OTHER: no test waits for ARP.
path_neighbours() {
	local mac address
	read -r mac <"/sys/class/net/$4/address"
	for address in "$2" "$3"; do
		ip neigh replace "$address" lladdr "$mac" dev "$1" nud permanent || return
	done
}

# path_up NUMBER
path_up() {
	local host target net net6 v
	[ -z "$ALONE" ] || { path_alone "$1" && return || return 1; }
	path_of "$1"
	if [ -z "${WIRE-}" ]; then
		ip link add "$host" mtu "${MTU:-9000}" type veth peer name "$target" mtu "${MTU:-9000}"
	else
		switch_up "$host" "$target"
	fi || return
	for v in "$host" "$target"; do
		echo 0 >"/proc/sys/net/ipv4/conf/$v/rp_filter"
		echo 1 >"/proc/sys/net/ipv4/conf/$v/accept_local"
		echo 1 >"/proc/sys/net/ipv6/conf/$v/keep_addr_on_down"
		ip link set "$v" up || return
	done
	path_rules add "$1" && path_routes "$1" || return
	for v in "$host" "$target"; do rdma link add "$(rxe_of "$v")" type rxe netdev "$v" || return; done
	path_gids "$1"
}

# path_gids NUMBER: waits until both devices are up and know their addresses.
path_gids() {
	local host target net net6 n v four
	path_of "$1"
	for n in 1 2; do
		v=$host
		[ "$n" = 1 ] || [ -n "$ALONE" ] || v=$target
		four=ffff:0a4$([ "$1" = 1 ] && echo d || echo e):000$n
		wait_for 10 gid_ready "$(rxe_of "$v")" "$four" && wait_for 10 gid_ready "$(rxe_of "$v")" "${net6%:}:.*000$n" && continue
		echo "$v: its device does not have the addresses" >&2
		return 1
	done
}

switch_up() {
	local v
	modprobe bridge && ip netns add wire && ip -n wire link add sw mtu 9000 type bridge && ip -n wire link set sw up || return
	for v; do
		ip link add "$v" mtu "${MTU:-9000}" type veth peer name "w$v" mtu "${MTU:-9000}" netns wire &&
			ip -n wire link set "w$v" master sw up || return
	done
}
# pull INTERFACE, plug INTERFACE: behind it nothing passes. The carrier stays, as rxe
# takes what an interface without one refuses for an error of the QP, of QP 1 too.
pull() { ip -n wire link set "w$1" type bridge_slave state 0; }
plug() { ip -n wire link set "w$1" type bridge_slave state 3; }

path_down() {
	local host target net net6 v
	path_of "$1"
	for v in "$host" "$target"; do rdma link delete "$(rxe_of "$v")" 2>/dev/null; done
	[ -n "$ALONE" ] || path_rules del "$1"
	ip link delete "$host"
	[ -n "$ALONE" ] || [ -z "${WIRE-}" ] || { ip link delete "$target" && ip netns delete wire; }
}

# network_rules, no_network_rules: local addresses come after the rules of the paths.
network_rules() {
	local family
	[ -z "$ALONE" ] || return 0
	echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
	for family in -4 -6; do
		ip $family rule add pref 30 lookup local && ip $family rule del pref 0 || return
	done
}

no_network_rules() {
	local family
	[ -z "$ALONE" ] || return 0
	for family in -4 -6; do
		ip $family rule add pref 0 lookup local && ip $family rule del pref 30
	done
}

# network_up [PATHS], network_down [PATHS]: so many paths (1).
network_up() {
	local n
	network_rules || return
	for ((n = 1; n <= ${1:-1}; n++)); do path_up $n || return; done
}

network_down() {
	local n
	for ((n = 1; n <= ${1:-1}; n++)); do path_down $n; done
	no_network_rules
}

# ---- targets ----------------------------------------------------------------

# disk NAME MIB [KEY=VALUE...]: /dev/NAME, a null_blk that keeps what is written.
disk() {
	local name=$1 pair
	mkdir "$NULLB/$name" || return
	for pair in memory_backed=1 "size=$2" blocksize=512 discard=1 submit_queues=2 "${@:3}" power=1; do
		echo "${pair#*=}" >"$NULLB/$name/${pair%%=*}" || return
	done
	wait_for 5 [ -b "/dev/$name" ]
}

# subsystem NQN [KEY=VALUE...]
subsystem() {
	local pair
	mkdir "$N/subsystems/$1" || return
	for pair in attr_allow_any_host=1 "${@:2}"; do
		echo "${pair#*=}" >"$N/subsystems/$1/${pair%%=*}" || return
	done
}

# namespace NQN NSID DEVICE [KEY=VALUE...]
namespace() {
	local ns=$N/subsystems/$1/namespaces/$2 pair
	mkdir "$ns" || return
	for pair in "device_path=$3" "${@:4}" enable=1; do
		echo -n "${pair#*=}" >"$ns/${pair%%=*}" || return
	done
}

# port NUMBER ADDRESS [KEY=VALUE...]
port() {
	local port=$N/ports/$1 pair family=ipv4
	[[ $2 != *:* ]] || family=ipv6
	mkdir "$port" || return
	for pair in addr_trtype=rdma addr_adrfam=$family "addr_traddr=$2" addr_trsvcid=4420 "${@:3}"; do
		echo "${pair#*=}" >"$port/${pair%%=*}" || return
	done
}

# offer PORT NQN, withdraw PORT NQN: a port listens while it offers something.
offer() { ln -s "$N/subsystems/$2" "$N/ports/$1/subsystems/$2"; }
withdraw() { rm "$N/ports/$1/subsystems/$2"; }

no_targets() {
	local dir name
	no_stall
	for dir in "$N"/ports/*/subsystems/*; do [ ! -L "$dir" ] || rm "$dir"; done
	for dir in "$N"/ports/*/ana_groups/*; do [ ! -d "$dir" ] || [ "${dir##*/}" = 1 ] || rmdir "$dir"; done
	for dir in "$N"/subsystems/*/allowed_hosts/*; do [ ! -L "$dir" ] || rm "$dir"; done
	for dir in "$N"/subsystems/*/namespaces/* "$N"/ports/* "$N"/subsystems/* "$N"/hosts/*; do
		[ ! -d "$dir" ] || rmdir "$dir" || echo "$dir cannot be removed"
	done
	for name in $(stallables); do dmsetup remove --retry "$name" || echo "$name cannot be removed"; done
	for dir in "$NULLB"/*/; do
		[ ! -d "$dir" ] || rmdir "$dir" || echo "$dir cannot be removed"
	done
}

# stallable NAME DEVICE: /dev/mapper/NAME, whose I/O can be held up.
stallable() { dmsetup create "$1" --table "0 $(blockdev --getsz "$2") linear $2 0" && dmsetup mknodes "$1"; }
stall() { dmsetup suspend --nolockfs --noflush "$1"; }
unstall() { dmsetup resume "$1"; }

# stallables: all of them. no_stall: they go on.
stallables() {
	local name rest
	[ -e /sys/class/misc/device-mapper ] || return 0
	while read -r name rest; do [[ $rest != "("* ]] || echo "$name"; done < <(dmsetup ls)
}
no_stall() {
	local name
	for name in $(stallables); do unstall "$name"; done
}

# ---- the host ---------------------------------------------------------------

# connect_to NQN OPTION...: CTRL is the controller's name. Fails quietly, and SAID
# is what nvme said. It may take $PATIENCE seconds.
PATIENCE=60
connect_to() {
	local nqn=$1
	shift
	CTRL=""
	SAID=$(timeout $((PATIENCE * SLOWER)) nvme connect -t "$NVME_TRANSPORT" -n "$nqn" -q "$HOSTNQN" -I "$HOSTID" "$@" 2>&1) || return
	# Not everything that has failed is an error of the program.
	[[ $SAID =~ :\ (nvme[0-9]+)$ ]] || return
	CTRL=${BASH_REMATCH[1]}
	[ -d "/sys/class/nvme/$CTRL" ]
}

# find_disk NQN [NSID]: DISK is the multipath disk, or the only one.
find_disk() {
	local dir nqn nsid
	DISK=""
	for dir in /sys/block/nvme*n*; do
		nqn="" nsid=""
		# Not the paths of which it is made.
		[[ $dir == *nvme*c*n* ]] || { read -r nqn <"$dir/device/subsysnqn" && read -r nsid <"$dir/nsid"; }
		if [ "$nqn" = "$1" ] && [ "$nsid" = "${2:-1}" ] && [ -b "/dev/${dir##*/}" ]; then
			DISK=/dev/${dir##*/}
			return 0
		fi
	done 2>/dev/null
	return 1
}

ctrl_is() { [ "$(cat "/sys/class/nvme/$1/state" 2>/dev/null)" = "$2" ]; }
ctrl_gone() { [ ! -d "/sys/class/nvme/$1" ]; }
no_ctrls() { ! compgen -G "/sys/class/nvme/nvme*" >/dev/null; }
no_disks() { ! compgen -G "/sys/block/nvme*n*" >/dev/null; }

# all_gone: no controller is left. They go by themselves once told; one that is
# connecting may have to give up first.
all_gone() {
	local ctrl
	for ctrl in /sys/class/nvme/nvme*; do
		[ ! -e "$ctrl/delete_controller" ] || echo 1 >"$ctrl/delete_controller"
	done 2>/dev/null
	wait_for 60 no_ctrls || echo "controllers are left: $(ls /sys/class/nvme)"
	wait_for 20 no_disks || echo "disks are left: $(ls -d /sys/block/nvme*)"
}

# counted CTRL: what the I/O queues of a controller of Rivet's have counted since they
# were connected, all together, in COUNT; what is of a CPU once.
declare -gA COUNT
counted() {
	local file key value seen=" " dir=/sys/kernel/debug/rivet/nvme/$1
	COUNT=()
	for file in "$dir"/queue*; do
		[ "$file" != "$dir/queue0" ] || continue
		while read -r key value; do
			if [ "$key" = cpu ]; then
				[[ $seen != *" $value "* ]] || break
				seen+="$value "
			fi
			COUNT[$key]=$((${COUNT[$key]:-0} + value))
		done <"$file"
	done
}
