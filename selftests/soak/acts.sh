# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034,SC2153,SC2154 # variables of the other files
#
# For selftests/soak/run: what is done to ends, policies and the machine. Each
# act_NAME draws how, says so ("decide"), does it, looks at what must come of it, and
# leaves all at work. None goes by what it finds: that is right or wrong.

ACTS="client again hasty signal server refused knob policy cpu device watch unload loss silent down netns storm race reload"
# How often each comes, for one time of those that come once.
declare -A OFTEN=([client]=8 [again]=3 [hasty]=2 [server]=3 [knob]=8 [policy]=2 [cpu]=4 [device]=3 [loss]=2 [storm]=3 [race]=3)

CPU1=/sys/devices/system/cpu/cpu1/online
FLAG=/run/soak # a job in the background goes on as long as this is there

# ---- ends -------------------------------------------------------------------

# shellcheck disable=SC2086 # a list
pick_client() { pick $CLIENTS; }

act_client() {
	local name
	pick_client && name=$W
	pick stop rmdir
	decide "$name ends by $W"
	end "$name" "$W"
	anew "$name"
}

# The same directory, started again.
act_again() {
	pick_client
	local name=$W
	decide "$name is stopped and started"
	stopped "$name"
	if fits "$name"; then launch "$name"; else anew "$name"; fi
}

# Stopped as soon as it runs.
act_hasty() {
	local name times
	pick_client && name=$W
	within 2 5 && times=$W
	decide "$name is stopped as soon as it runs, $times times"
	end "$name" stop
	anew "$name"
	for (( ; times > 0; times--)); do
		stopped "$name"
		launch "$name"
	done
}

# Who starts it is interrupted or killed while it connects, or a moment later.
act_signal() {
	local name signal after pid
	pick_client && name=$W
	pick INT TERM KILL && signal=$W
	within 1 250 && printf -v after '0.%03d' "$W"
	decide "$name: SIG$signal to who starts it, after $after s"
	may_say "$GAVE_UP|$BROKE"
	stopped "$name"
	fits "$name" || drawn "$name"
	set_up "$name"
	away "$name"
	attr_write -n "$W" "$C/$name/start" 1 >/dev/null &
	pid=$!
	nap "$after"
	{ kill -"$signal" $pid && wait $pid; } 2>/dev/null
	stop "$name"
	launch "$name"
}

act_server() {
	local name how by
	# shellcheck disable=SC2086 # lists
	{ pick $SERVERS && name=$W && pick $OWN $PRESETS && by=$W; }
	pick stop rmdir && how=$W
	clients_of "$name"
	decide "$name ends by $how and comes again, by $by, with ${WORDS[*]:-nobody}"
	local clients=("${WORDS[@]}")
	unserve "$name" "$how"
	broken "$ENDED" "${clients[@]}"
	serve "$name" "$by"
	once_more "${clients[@]}"
}

# refused ERRNO KEY=VALUE...: with nothing the worse.
refused() {
	decide "refused with $1: ${*:2}"
	make x role=client address=10.77.0.2 timeout_ms=1000 "${@:2}" && NS=a put x/start 1
	[ "$ERRNO" = "$1" ] || fail "start: $ERRNO, not $1"
	remove x
}
act_refused() {
	draw 5
	case $D in
	0) refused ECONNREFUSED port=1 ;;
	1) refused ENODEV device=rxe9 ;;
	2) refused EINVAL op=read transport=ud ;;
	3) refused ENETUNREACH address=192.0.2.1 ;;
	4) refused EINVAL size=1048576 depth=1024 ;;
	esac
}

# ---- policies ---------------------------------------------------------------

act_knob() {
	local name knob times
	within 1 4 && times=$W
	for (( ; times > 0; times--)); do
		# shellcheck disable=SC2086 # lists
		{ pick $OWN && name=$W && pick $LIVE $ALL_KNOBS && knob=$W; }
		draw_value "$knob"
		decide "policy $name: $knob=$W"
		put "/policies/$name/$knob" "$W"
		[ "$ERRNO" = OK ] || fail "$name: $knob=$W: $ERRNO ${LINES[*]}"
		note_knobs "$name" "$knob=$W"
	done
}

# Whoever uses it ends; another one has its name then.
act_policy() {
	local name end clients=() servers=()
	# shellcheck disable=SC2086 # a list
	pick $OWN && name=$W
	for end in $SERVERS; do
		[ "${SERVED_BY[$end]}" != "$name" ] || servers+=("$end")
	done
	for end in $CLIENTS; do
		[ "${BY[$end]}" = "$name" ] || [ "${SERVED_BY[${TO[$end]}]}" = "$name" ] || continue
		[ "$end" = "$RACER" ] || clients+=("$end")
	done
	WORDS=("${servers[@]}" "${clients[@]}")
	decide "policy $name goes, and before it ${WORDS[*]:-nobody}"
	if [ ${#servers[@]} -gt 0 ]; then
		rmdir "$P/$name" 2>/dev/null && fail "$name was removed while ${servers[0]} uses it"
	fi
	for end in "${clients[@]}"; do end "$end" stop; done
	for end in "${servers[@]}"; do unserve "$end" stop; done
	rmdir "$P/$name" || fail "$name cannot be removed"
	own_policy "$name"
	for end in "${servers[@]}"; do serve "$end" "$name"; done
	for end in "${clients[@]}"; do anew "$end"; done
}

# ---- what is looked at ------------------------------------------------------

# Everything is read, and traced, while it changes.
act_watch() {
	local times file
	within 1 3 && times=$W
	decide "everything is read, $times times"
	echo 1 >/sys/kernel/tracing/events/rivet/enable
	for (( ; times > 0; times--)); do
		for file in "$C"/*/* "$P"/*/* /sys/kernel/debug/rivet/perf/*/*/*; do
			[[ $file = */start || $file = */stop ]] || mapfile -t <"$file"
		done 2>/dev/null
		rdma resource show qp >/dev/null
		all_well
	done
	echo 0 >/sys/kernel/tracing/events/rivet/enable
	echo >/sys/kernel/tracing/trace
}

act_unload() {
	decide "the module cannot go"
	rmmod rivet 2>/dev/null && fail "it was unloaded"
}

# ---- the machine ------------------------------------------------------------

act_cpu() {
	local way=comes
	[ -n "$ONLINE" ] && ONLINE="" way=goes || ONLINE=1
	decide "CPU 1 $way"
	echo "${ONLINE:-0}" >"$CPU1" || fail "CPU 1 stays as it is"
}

# Of one end of the network: what is connected over it fails, and with another device
# all goes on.
act_device() {
	local ns
	pick a b && ns=$W
	clients_of all
	decide "the device rxe$ns goes and comes, with ${WORDS[*]}"
	local clients=("${WORDS[@]}")
	may_say "$GOES|$ENDED|$BROKE"
	log_clear
	timed "removal of rxe$ns" rdma link delete "rxe$ns"
	[ ! -d "/sys/class/infiniband/rxe$ns" ] || fail "rxe$ns is still there"
	broken "$GOES|$ENDED|$BROKE" "${clients[@]}"
	link "$ns"
	listen_again "$ns"
	once_more "${clients[@]}"
}

# network: both namespaces, and a queue on each interface that does nothing yet. It is
# there all the time, as rxe breaks every QP that sends while another queue is put in,
# and as every QP breaks whose packet finds it full.
network() { net_up && queues add; }
queues() {
	tc -n a qdisc "$1" dev va root netem limit 100000 "${@:2}" &&
		tc -n b qdisc "$1" dev vb root netem limit 100000 "${@:2}" || fail "the network cannot be made so: ${*:2}"
}

# A network that is worse than others, for some looks. No jitter: it changes the order
# of packets, and rxe sends a message of some hundred of them again and again.
act_loss() {
	local how times
	pick "loss 0.1%" "loss 0.5%" "duplicate 1%" "delay 1ms" "delay 3ms" && how=$W
	within 1 3 && times=$W
	decide "the network has $how"
	# shellcheck disable=SC2086 # words
	queues change $how
	for (( ; times > 0; times--)); do all_well; done
	queues change
}

# Nothing passes, and nobody is told.
act_silent() {
	clients_of all
	decide "nothing passes, for ${WORDS[*]}"
	local clients=("${WORDS[@]}")
	may_say "$ENDED|$BROKE"
	queues change loss 100%
	broken "$ENDED|$BROKE" "${clients[@]}"
	queues change
	once_more "${clients[@]}"
}

# An interface goes down. What rxe forgets by that, new devices know.
act_down() {
	local ns
	pick a b && ns=$W
	clients_of all
	decide "the interface v$ns goes down and up, with ${WORDS[*]}"
	local clients=("${WORDS[@]}")
	may_say "$GOES|$ENDED|$BROKE"
	ip -n "$ns" link set "v$ns" down
	broken "$GOES|$ENDED|$BROKE" "${clients[@]}"
	ip -n "$ns" link set "v$ns" up
	log_clear
	renew
	listen_again a
	listen_again b
	once_more "${clients[@]}"
}

# Names of namespaces are deleted: traffic goes on as long as ends hold them. They go
# with the ends.
act_netns() {
	local ns names
	pick a b "a b" && names=$W
	draw_mtu
	decide "the namespaces $names are deleted; then all is made anew, with an MTU of $MTU"
	for ns in $names; do ip netns delete "$ns"; done
	HOLD=1
	all_well
	end_all
	for ns in $names; do
		wait_for 15 no_device "rxe$ns" || fail "rxe$ns is still there"
	done
	{ net_down && nap 0.5; } 2>/dev/null
	network || fail "no network"
	HOLD=""
	begin_all
}
no_device() { [ ! -d "/sys/class/infiniband/$1" ]; }

# draw_mtu: MTU, and the payload that one packet of it can have on any transport.
draw_mtu() {
	pick 1500 9000 && MTU=$W
	[ "$MTU" = 1500 ] && PACKET=1000 || PACKET=4000
}

# The module goes, with nothing left, and comes again.
act_reload() {
	decide "the module goes and comes"
	end_all
	nothing_left
	rivet_load || fail "it cannot be loaded again"
	begin_all
}

# nothing_left: all has ended. The module is unloaded.
nothing_left() {
	local leak
	wait_for 5 objects_are "$OBJECTS" || fail "left: $(objects) before: $OBJECTS"
	rivet_unload || fail "the module cannot be unloaded"
	if [ -w /sys/kernel/debug/kmemleak ]; then
		nap 6
		echo scan >/sys/kernel/debug/kmemleak
		read -r leak </sys/kernel/debug/kmemleak && fail "kmemleak: $leak"
	fi
	echo 3 >/proc/sys/vm/drop_caches
	sample_memory
}

# ---- one while the other ----------------------------------------------------

# while_it_goes FUNCTION ARGUMENT...: in the background, until "no_more".
while_it_goes() {
	: >$FLAG
	while [ -e $FLAG ]; do "$@"; done >/dev/null 2>&1 &
	JOB=$!
	renice -n 0 -p $JOB >/dev/null
}
no_more() {
	rm $FLAG
	wait "$JOB"
}

# An act while live knobs are written as fast as they can be. Who polls and who sleeps
# stays so, as there are loads that cannot sleep.
act_storm() {
	pick client server device cpu again policy
	local act=$W name
	# shellcheck disable=SC2086 # a list
	pick $OWN && name=$W
	[ "$act" != policy ] || name="latency"
	decide "knobs of $name are written all the time, while:"
	while_it_goes write_knobs "$name"
	"act_$act"
	no_more
	# As they were drawn.
	echo "${KNOB[$name.completion]}" >"$P/$name/completion"
}
write_knobs() {
	local knob
	for knob in $LIVE; do
		draw_value "$knob"
		if [ "$knob" = completion ]; then
			polls "$1" && pick busy adaptive || pick interrupt coalesce
		fi
		echo "$W" >"$P/$1/$knob"
	done
}

# An act while a client is started and stopped over and over.
act_race() {
	pick_client
	local name=$W act ns
	pick device server cpu knob && act=$W
	decide "$name is started and stopped all the time, while:"
	end "$name" stop
	drawn "$name"
	set_up "$name"
	RACER=$name
	may_say "$GAVE_UP|$GOES|$ENDED|$BROKE"
	away "$name" && ns=$W
	while_it_goes start_and_stop "$name" "$ns"
	"act_$act"
	no_more
	RACER=""
	stop "$name"
	right "$name"
	anew "$name"
}
start_and_stop() {
	attr_write -n "$2" "$C/$1/start" 1
	attr_write "$C/$1/stop" 1
}
