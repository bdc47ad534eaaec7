# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# For guest scripts that measure: one run of Rivet's perf or of perftest
# between the namespaces a (client) and b (server), as one number.

PERF=/sys/kernel/config/rivet/perf
POLICIES=/sys/kernel/config/rivet/policies
SERVER=10.77.0.2

in_a() { nsenter --net=/run/netns/a "$@"; }
in_b() { nsenter --net=/run/netns/b "$@"; }

# value FILE KEY: of a "key value" file.
value() { awk -v key="$2" '$1 == key { print $2 }' "$1"; }

# rivet_policy NAME KNOB=VALUE...: a policy that is otherwise like "default".
rivet_policy() {
	local policy=$POLICIES/$1 pair
	shift
	mkdir "$policy" || return 1
	for pair; do
		echo "${pair#*=}" >"$policy/${pair%%=*}" || return 1
	done
}

rivet_policy_remove() { rmdir "$POLICIES/$1"; }

rivet_server() { # KEY=VALUE...
	in_b /rivet/bench/set-end server role=server address=$SERVER "$@" start=1
}

rivet_server_stop() { rmdir $PERF/server; }

# rivet_run RESULT-KEY KEY=VALUE...: one client's run; prints the result. The
# state is looked at every $LOOK seconds; looking costs instructions too.
rivet_run() {
	local key=$1 end=$PERF/client state
	shift
	in_a /rivet/bench/set-end client role=client address=$SERVER "$@" start=1 || return 1
	while state=$(<$end/state) && [ "$state" = running ]; do
		sleep "${LOOK:-0.05}"
	done
	if [ "$state" != "done" ]; then
		echo "rivet: $(<$end/error)" >&2
		rmdir $end
		return 1
	fi
	value $end/result "$key"
	rmdir $end
}

# perftest_run COLUMN TOOL OPTIONS...: prints a column of the tool's table.
perftest_run() {
	local column=$1 tool=$2 server out
	shift 2
	in_b "$tool" -d rxeb -x "$GID_INDEX" -F "$@" >/tmp/perftest.server 2>&1 &
	server=$!
	# The server is there when it listens.
	while ! in_b ss -Hltn 'sport = :18515' | grep -q .; do
		kill -0 $server 2>/dev/null || break
		sleep 0.02
	done
	out=$(in_a "$tool" -d rxea -x "$GID_INDEX" -F "$@" $SERVER 2>&1)
	wait $server
	# The last line of numbers; latencies have 9 columns, rates 5.
	awk -v column="$column" '/^ *[0-9]+ +[0-9]+ / { value = $column } END { if (value == "") exit 1; print value }' <<<"$out" || {
		printf '%s\n' "$out" >&2
		return 1
	}
}

# The RoCE v2 GID of the IPv4 address, alike at both ends.
gid_index() {
	local i
	for i in /sys/class/infiniband/rxea/ports/1/gids/*; do
		if grep -qs '^0000:0000:0000:0000:0000:ffff:' "$i"; then
			basename "$i"
			return
		fi
	done
	return 1
}
