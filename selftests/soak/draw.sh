# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034,SC2153,SC2154 # variables of the other files
#
# For selftests/soak/run: everything that is left to chance, and what has been
# decided so far. Nothing here looks at the machine, and nobody draws in a subshell,
# so that a seed always leads to the same decisions, however long they take.
#
# What is never drawn, as rxe does not survive it (README, "What it does not do
# yet"): messages of several packets on uc, and READs of several packets by
# exchange_in.

# draw N: D is one of 0 to N-1 (Knuth's MMIX generator, its upper bits).
draw() {
	X=$((X * 6364136223846793005 + 1442695040888963407))
	D=$(((X >> 33 & 0x7fffffff) % $1))
}

# pick WORD...: W is one of them; each as often as it is named.
pick() { draw $# && W=${*:D+1:1}; }

# within FIRST LAST: W is one of these numbers.
within() { draw $(($2 - $1 + 1)) && W=$(($1 + D)); }

# chance PERCENT
chance() { draw 100 && [ "$D" -lt "$1" ]; }

# shuffle WORD...: WORDS has them in some order.
shuffle() {
	local left=("$@")
	WORDS=()
	while [ ${#left[@]} -gt 0 ]; do
		draw ${#left[@]}
		WORDS+=("${left[D]}")
		left=("${left[@]:0:D}" "${left[@]:D+1}")
	done
}

# ---- policies ---------------------------------------------------------------

OWN="p0 p1 p2"
PRESETS="default latency throughput naive"
# KNOB[POLICY.NAME]: what loads depend on.
declare -A KNOB
for policy in $PRESETS; do
	KNOB[$policy.completion]=adaptive KNOB[$policy.memory]=auto KNOB[$policy.cpus]=all
done
KNOB[latency.completion]=busy
KNOB[naive.completion]=interrupt KNOB[naive.memory]=register

LIVE="completion coalesce_usecs coalesce_count busy_usecs poll_budget"
ALL_KNOBS="$LIVE lanes cpus numa lock memory copy_threshold mr_cache_entries batch signal_every"

# draw_value KNOB: W is what it becomes.
draw_value() {
	case $1 in
	completion) pick interrupt coalesce busy adaptive ;;
	coalesce_usecs) chance 30 && pick 1 10000 || within 1 1000 ;;
	coalesce_count) chance 30 && pick 1 1024 || within 1 100 ;;
	busy_usecs) chance 30 && pick 0 20000 || within 0 1000 ;;
	poll_budget) chance 30 && pick 1 256 || within 1 256 ;;
	lanes) pick 0 0 1 2 3 4 ;;
	# An offline one would be refused.
	cpus) pick all all 0 ${ONLINE:+1 0-1} ;;
	numa) pick auto 0 ;;
	lock) pick percpu global ;;
	memory) pick register fast_waited fast cached copy auto ;;
	copy_threshold) chance 30 && pick 0 65536 || within 0 65536 ;;
	# Twice what a load has under way is the least.
	mr_cache_entries) pick 128 160 1024 65536 ;;
	batch) chance 30 && pick 1 128 || within 1 128 ;;
	signal_every) chance 30 && pick 0 256 || within 0 256 ;;
	esac
}

# draw_policy: SETTINGS for a new one.
draw_policy() {
	local knob
	SETTINGS=()
	for knob in $ALL_KNOBS; do
		chance 40 || [ "$knob" = memory ] || continue
		draw_value "$knob"
		SETTINGS+=("$knob=$W")
	done
}

# note_knobs POLICY KNOB=VALUE...
note_knobs() {
	local pair
	for pair in "${@:2}"; do KNOB[$1.${pair%%=*}]=${pair#*=}; done
}

polls() { [[ ${KNOB[$1.completion]} != [ic]* ]]; }

# ---- loads ------------------------------------------------------------------

# Of each client: its server, policy, operation, submitters, goal, and all that is set
# on it.
declare -A TO BY OP CREW COUNT LOAD
# Of each server: its policy.
declare -A SERVED_BY

# draw_size: SIZE, of a message that may have several packets, and MOST, how many of
# them may be under way on a QP. On a slow kernel a long READ takes longer than an
# acknowledgement is waited for, and rxe asks for it again and again.
draw_size() {
	pick tiny tiny tiny tiny page page page some some large
	case $W in
	tiny) within 1 300 && MOST=24 ;;
	page) within 1 10000 && MOST=8 ;;
	some) within 1 $((70000 / SLOWER)) && MOST=2 ;;
	large) within $((70000 / SLOWER)) $((400000 / SLOWER)) && MOST=1 ;;
	esac
	SIZE=$W
}

# draw_load CLIENT: what it is to do next.
draw_load() {
	local transport depth connections sges=1 buffers=0
	pick s0 s1 s2 && TO[$1]=$W
	# shellcheck disable=SC2086 # lists
	pick $OWN $OWN $PRESETS && BY[$1]=$W
	pick rc rc rc uc ud crew crew && transport=$W
	CREW[$1]=0
	draw_size
	case $transport in
	crew)
		transport=rc
		pick read read send send_imm write write_imm && OP[$1]=$W
		within 1 4 && CREW[$1]=$W
		;;
	rc) pick send send_imm write write_imm read fetch_add cmp_swap send_ping write_ping exchange_out exchange_in && OP[$1]=$W ;;
	uc) pick send send_imm write write_imm send_ping write_ping && OP[$1]=$W ;;
	ud) pick send send_imm send_ping && OP[$1]=$W ;;
	esac
	within 1 "$MOST" && depth=$W
	connections=1
	[ "$SIZE" -gt 70000 ] || { within 1 4 && connections=$W; }
	within 1 4 && sges=$W
	within 20 60 && buffers=$W
	[ "$transport" = rc ] && [ "${OP[$1]}" != exchange_in ] || SIZE=$((SIZE % PACKET + 1))
	case ${OP[$1]} in
	fetch_add | cmp_swap) SIZE=8 sges=1 ;;
	exchange_*) sges=1 ;;
	write_ping)
		depth=1
		polls "${BY[$1]}" && polls "${SERVED_BY[${TO[$1]}]}" || OP[$1]=send_ping
		;;
	send_ping) depth=1 ;;
	esac
	[ "$SIZE" -ge 64 ] || sges=1
	LOAD[$1]="transport=$transport size=$SIZE"
	if [ "${CREW[$1]}" -gt 0 ]; then
		connections=$((connections > 2 ? 2 : connections))
		depth=$((depth > 4 ? 4 : depth))
		[ "$SIZE" -le 70000 ] || CREW[$1]=1
		LOAD[$1]+=" submitters=${CREW[$1]}"
		[ "$SIZE" -gt 20000 ] || LOAD[$1]+=" buffers=$buffers"
	else
		LOAD[$1]+=" sges=$sges"
	fi
	within 1 2000 && COUNT[$1]=$W
	chance 25 || COUNT[$1]=0
	[ "${COUNT[$1]}" -gt 0 ] && LOAD[$1]+=" count=${COUNT[$1]}" || LOAD[$1]+=" duration_ms=86400000"
	LOAD[$1]+=" depth=$depth connections=$connections"
	fits "$1" || LOAD[$1]="transport=rc size=$SIZE duration_ms=86400000" OP[$1]=send CREW[$1]=0 COUNT[$1]=0
}

# fits CLIENT: its load and the knobs of its policy, as they are now, go together.
fits() {
	local by=${BY[$1]}
	[ "${OP[$1]}" != write_ping ] || { polls "$by" && polls "${SERVED_BY[${TO[$1]}]}"; } || return
	[ "${CREW[$1]}" -gt 0 ] || return 0
	# A lane needs a CPU that is online.
	[ -n "$ONLINE" ] || [ "${KNOB[$by.cpus]}" != 1 ]
}
