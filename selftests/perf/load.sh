#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The module comes and goes, and leaves nothing.

# shellcheck source=selftests/lib.sh
. "${0%/*}/../lib.sh"

restore() { [ -d $C ] || rivet_load; }

busy_while_an_end_exists() {
	local said
	make e || return
	said=$(rmmod rivet 2>&1) && fail "it was unloaded under an end"
	[[ $said == *"in use"* ]] || fail "rmmod: $said"
	busy_while_it_runs
	rmdir "$C"/s "$C"/e
	rmmod rivet || fail "it cannot be unloaded"
	[ ! -e "$C" ] || fail "$C is still there"
	rivet_load && run_once
}
busy_while_it_runs() {
	server || return
	rmmod rivet 2>/dev/null && fail "it was unloaded under a server"
}

run_once() {
	server && client count=50 depth=8 && start c a && await_done c && expect c ops=50
	rmdir "$C"/c "$C"/s
}

# sample: what the kernel has, without what it can give back.
sample() {
	echo 3 >/proc/sys/vm/drop_caches
	echo sample
	cat /proc/zoneinfo /proc/slabinfo
}

# trends SAMPLES-PER-HALF: by how many hundredths per sample the pages that somebody holds
# and the objects of each slab become more, in the first half of the samples and
# in the second: a leak shows in both, a cache that needed another page in one.
trends() {
	awk -v half="$1" '
	function add(key, n) {
		seen[key] = 1
		sum[i >= half, key] += n * distance
	}
	$1 == "sample" {
		i = samples++
		distance = i % half - (half - 1) / 2
		squares += distance * distance / 2
	}
	# Those on the lists of the CPUs are free, slabs are counted below, and shmem
	# is the file with the samples.
	$1 ~ /^(count:|nr_free_pages|nr_slab_(un)?reclaimable|nr_shmem)$/ { add("pages", -$2) }
	# vmap_area is given back late, and many at a time.
	/: tunables/ && $1 != "vmap_area" { add($1, $2) }
	END {
		for (key in seen)
			printf "%s %d %d\n", key, 100 * sum[0, key] / squares, 100 * sum[1, key] / squares
	}'
}

# rounds N FROM: the module is loaded, used and unloaded; from round FROM on
# nothing becomes more by nearly one in each round.
rounds() {
	local i key first second n=0 begin=$SECONDS samples=/tmp/samples
	rmmod rivet || return
	for ((i = 1; i <= $1; i++)); do
		insmod "$RIVET_AT/rivet.ko" && run_once && rmmod rivet || fail "round $i"
		[ "$FAILURES" -eq 0 ] || return
		[ "$i" -le "$2" ] || sample >>"$samples"
		[ $((i % 25)) -ne 0 ] || progress "round $i"
	done
	echo "$1 rounds in $((SECONDS - begin)) s"
	while read -r key first second; do
		n=$((n + 1))
		if [ "$first" -gt 90 ] && [ "$second" -gt 90 ]; then
			fail "$key: $first, then $second hundredths more in each round"
		elif [ "$key" = pages ]; then
			echo "$key: $first, then $second hundredths more in each round"
		fi
	done < <(trends $((($1 - $2) / 2)) <"$samples")
	rm "$samples"
	[ "$n" -gt 50 ] || fail "there are only $n trends"
}

tests busy_while_an_end_exists "rounds 100 20"
