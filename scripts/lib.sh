# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Common to all scripts: paths, messages, the change to root, long steps with
# their progress and log, and the cache's folders.

set -euo pipefail
umask 022 # the cache is read by whoever built with it

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
BUILD=$TOP/build
LOGS=$BUILD/logs
SELF=$(realpath --relative-to="$TOP" "$0") # the script that was called
CACHE=${RIVET_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/rivet}

# Who gets the files in build/: the user who called sudo, if somebody did.
OWNER=${RIVET_OWNER:-${SUDO_UID:-$(id -u)}:${SUDO_GID:-$(id -g)}}

# shellcheck source=scripts/settings.sh
. "$TOP/scripts/settings.sh"

say() { printf '%s\n' "$*"; }
note() { printf '  %s\n' "$*"; }
die() {
	printf 'rivet: %s\n' "$1" >&2
	shift
	[ $# -eq 0 ] || printf '       %s\n' "$@" >&2
	exit 1
}

on_terminal() { [ -t 1 ] && [ "${CI:-}" != true ] && [ "${TERM:-dumb}" != dumb ]; }

# The chroots and mounts need root. The environment crosses sudo by name, and
# the cache stays the caller's.
become_root() {
	cd "$TOP" # scripts run from here, and so does what they start in the roots
	[ "$(id -u)" -ne 0 ] || return 0
	command -v sudo >/dev/null ||
		die "root is needed for chroot and mount, and there is no sudo" \
			"run make as root, or install sudo"
	local v keep=()
	for v in KERNEL FLAVOUR RIVET_KERNEL_SAID DEBIAN_MIRROR ACCEL ROUNDS CASES MINUTES SEED CI TERM \
		http_proxy https_proxy no_proxy; do
		[ -z "${!v+x}" ] || keep+=("$v=${!v}")
	done
	exec sudo env "${keep[@]}" RIVET_CACHE="$CACHE" RIVET_OWNER="$(id -u):$(id -g)" \
		"$TOP/${SELF:?}" "$@"
}

# make_build_dir: build/ and build/logs/, owned by the caller.
make_build_dir() {
	mkdir -p "$LOGS"
	chown "$OWNER" "$BUILD" "$LOGS"
}

# in_root ROOT USER COMMAND...: run COMMAND as USER (uid:gid) in the chroot
# ROOT, in this same folder. The mount and process namespaces vanish with it,
# however it ends; "pdeathsig" carries the end of this shell down.
in_root() {
	local root=$1 user=$2
	shift 2
	setpriv --pdeathsig KILL \
		unshare --mount --pid --fork --kill-child --propagation private \
		bash "$TOP/scripts/enter-root" "$root" "$user" "$CACHE" "$TOP" "$@"
}

# The two common cases: as root (to fill the cache), as the caller (build/).
in_sysroot() { in_root "$SYSROOT" 0:0 "$@"; }
as_owner() { in_root "$SYSROOT" "$OWNER" "$@"; }

# cache_key VALUE...: a short hash of what a cached folder is made from.
cache_key() { printf '%s\n' "$@" | tr -s ' \t\n' ' ' | sha256sum | cut -c1-12; }

is_complete() { [ -e "$1/.complete" ]; }
begin_dir() {
	rm -f "$1/.complete"
	rm -rf --one-file-system "$1"
	mkdir -p "$1"
}
end_dir() { touch "$1/.complete"; }

# Only one run at a time may fill the cache; readers need no lock, since a
# folder is used only once its stamp is there, and is never changed after.
lock_cache() {
	mkdir -p "$CACHE"
	exec {CACHE_LOCK}>"$CACHE/lock"
	if ! flock -n "$CACHE_LOCK"; then
		say "Another run is filling $CACHE; waiting for it."
		flock "$CACHE_LOCK"
	fi
}
unlock_cache() { exec {CACHE_LOCK}>&-; }

# ---- long steps ------------------------------------------------------------

STEP_PID=
stop_step() { [ -z "$STEP_PID" ] || kill -KILL "$STEP_PID" 2>/dev/null || :; }
# Only EXIT, which bash runs on SIGINT and SIGTERM too: with traps of their own
# these would wait until the command in the foreground has ended.
trap stop_step EXIT

# step LABEL USUAL LOG HINT COMMAND...: run COMMAND with its output in
# LOGS/LOG, show the time and the last line meanwhile, and the end of the log
# when it fails.
step() {
	local label=$1 usual=$2 log=$LOGS/$3 hint=$4 start=$SECONDS rc=0 last beat=0
	shift 4
	: >"$log"
	chown "$OWNER" "$log"
	on_terminal || say "$label (usually $usual; log: ${log#"$TOP"/})"

	"$@" </dev/null >>"$log" 2>&1 &
	STEP_PID=$!
	while kill -0 "$STEP_PID" 2>/dev/null; do
		if on_terminal; then
			last=$(tail -c 400 "$log" | tr '\r' '\n' | tail -n 1 | tr -cd '[:print:]')
			printf '\r\033[K%s  %d s (usually %s)  %.40s' "$label" \
				$((SECONDS - start)) "$usual" "$last"
		elif ((SECONDS - start >= beat + 30)); then
			beat=$((SECONDS - start))
			note "still at it after $beat s, $(wc -l <"$log") lines of log"
		fi
		sleep 0.5
	done
	wait "$STEP_PID" || rc=$?
	STEP_PID=

	if [ $rc -eq 0 ]; then
		if on_terminal; then
			printf '\r\033[K%s  done in %d s\n' "$label" $((SECONDS - start))
		else
			note "done in $((SECONDS - start)) s"
		fi
		return 0
	fi
	on_terminal && printf '\r\033[K%s  FAILED after %d s\n' "$label" $((SECONDS - start))
	say "The last lines of ${log#"$TOP"/}:"
	tail -n 25 "$log" | sed 's/^/  | /'
	die "$label: failed (exit status $rc)" "the whole log: $log" "$hint"
}

# retry COMMAND...: for downloads; three attempts.
retry() {
	local n
	for n in 1 2 3; do
		"$@" && return 0
		echo "attempt $n of 3 failed: $*"
		[ "$n" = 3 ] || sleep $((n * 5))
	done
	return 1
}
