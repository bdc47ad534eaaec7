# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# The two Debian 13 roots: SYSROOT with the toolchain and QEMU, GUEST with the
# virtual machine's user space.

SYSROOT_KEY=$(cache_key 1 "$SUITE" "$SYSROOT_PACKAGES")
GUEST_KEY=$(cache_key 1 "$SUITE" "$GUEST_PACKAGES")
SYSROOT=$CACHE/sysroot-$SYSROOT_KEY
GUEST=$CACHE/guest-$GUEST_KEY

# No mirror is written here: mmdebstrap knows Debian's own, and the line for
# backports is the generated one with the suite's name changed.
make_root() {
	local dir=$1 packages mirror=()
	packages=$(echo "$2" | tr -s ' \t\n' ',,,')
	[ -z "${DEBIAN_MIRROR:-}" ] || mirror=("$DEBIAN_MIRROR")
	begin_dir "$dir"
	# A name space of its own: an aborted build leaves no mounts behind.
	# shellcheck disable=SC2016 # $1 is for the hook
	setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child \
		--mount-proc --propagation private \
		mmdebstrap --verbose --mode=root --variant=minbase --include="$packages" \
		--aptopt='Acquire::Languages "none"' --aptopt='Acquire::Retries "3"' \
		--skip=cleanup/apt/lists \
		--setup-hook="sed -n 's/ $SUITE / $BACKPORTS /p;T;q' \"\$1/etc/apt/sources.list\" >\"\$1/etc/apt/sources.list.d/backports.list\"" \
		"$SUITE" "$dir" "${mirror[@]}" || return 1
	rm -f "$dir/etc/resolv.conf"
	end_dir "$dir"
}

need_sysroot() {
	is_complete "$SYSROOT" || step "Debian 13 toolchain and QEMU" "1 to 3 min" sysroot.log \
		"check the network; DEBIAN_MIRROR=http://… takes another mirror" \
		retry make_root "$SYSROOT" "$SYSROOT_PACKAGES"
}

need_guest() {
	is_complete "$GUEST" || step "Debian 13 guest" "1 to 2 min" guest.log \
		"check the network; DEBIAN_MIRROR=http://… takes another mirror" \
		retry make_root "$GUEST" "$GUEST_PACKAGES"
}
