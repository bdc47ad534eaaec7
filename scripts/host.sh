# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# What the host must offer. Everything that cannot be met is named at once,
# before any download starts; packages that are missing are installed.

# free_gb DIR: free space at DIR, or at the nearest parent that exists.
free_gb() {
	local dir=$1
	while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
	df -Pk "$dir" | awk 'NR == 2 { print int($4 / 1048576) }'
}

check_host() {
	local missing=() mem

	[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
		missing+=("a Linux host on x86-64 (this is $(uname -s) on $(uname -m))")
	command -v apt-get >/dev/null ||
		missing+=("Debian 12 or 13, or a relative of them with apt (there is no apt-get)")
	mem=$(awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo)
	[ "$mem" -ge 3600 ] ||
		missing+=("4 GB of memory (there are $mem MB)")
	case $TOP$CACHE in
	*[[:space:]:]*) missing+=("paths without spaces and colons, for the kernel's build: $TOP, $CACHE") ;;
	esac
	if ! is_complete "$KTREE" && [ "$(free_gb "$CACHE")" -lt 12 ]; then
		missing+=("12 GB of disk at $CACHE (there are $(free_gb "$CACHE") GB; XDG_CACHE_HOME= moves the cache)")
	fi
	if command -v unshare >/dev/null && ! unshare --mount --pid --fork true 2>/dev/null; then
		missing+=("the right to mount (a container needs CAP_SYS_ADMIN, as with docker run --privileged)")
	fi
	[ ${#missing[@]} -eq 0 ] ||
		die "this host lacks what the build needs:" "${missing[@]/#/- }"
}

install_host_packages() {
	local pair probe want=()
	for pair in $HOST_PACKAGES; do
		probe=${pair%%:*}
		[ -e "$probe" ] || command -v "$probe" >/dev/null || want+=("${pair##*:}")
	done
	[ ${#want[@]} -gt 0 ] || return 0

	say "Installing on this host: ${want[*]}"
	step "Host packages" "20 s" host-packages.log \
		"install them by hand: apt-get install ${want[*]}" \
		apt_install "${want[@]}"
}

apt_install() {
	export DEBIAN_FRONTEND=noninteractive
	# A foreign repository that does not answer must not stop this.
	retry apt-get update || echo "apt-get update failed; trying with the old lists"
	retry apt-get install -y --no-install-recommends "$@"
}
