# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034 # variables for the scripts that source this
#
# The kernel: which version, its packages from Debian's backports, and the
# build tree with the Rust metadata that Debian's headers package lacks.
#
# The tree is made from linux-source of the very version of the image, with
# Debian's own configuration and compilers, so its Rust symbols carry the same
# mangled names as those that the stock kernel exports. That kernel itself is
# never compiled.
#
# FLAVOUR=debug is another kernel from the same source, compiled with what
# debug.config says, that looks for faults of memory and locks. Its tree is also
# the one that modules are built against.

# Which kernel: KERNEL=, else what an earlier run took in place of a default
# that has left the archive, else the default.
KERNEL_CHOICE=$CACHE/kernel-instead-of-$DEFAULT_KERNEL
choose_kernel() {
	if [ -n "${KERNEL:-}" ]; then
		VERSION=$KERNEL
	elif ! is_complete "$CACHE/kernel-$DEFAULT_KERNEL" && [ -s "$KERNEL_CHOICE" ]; then
		VERSION=$(cat "$KERNEL_CHOICE")
	else
		VERSION=$DEFAULT_KERNEL
	fi
	[[ $VERSION =~ ^[0-9][0-9A-Za-z.+~-]*$ ]] ||
		die "KERNEL=$VERSION is no kernel version (example: $DEFAULT_KERNEL)"
	KPKG=$CACHE/kernel-$VERSION
	KSOURCE=$KPKG/source
	RELEASE=$VERSION
	KTREE=$CACHE/tree-$VERSION-$(cache_key 1 "$SYSROOT_KEY" "$(declare -f make_tree)")
	KROOT=$KPKG/root
	KIMAGE=$KPKG/vmlinux
	KCOMPILER=(CC="$KERNEL_CC")
	MODULE_DIR=$BUILD/module
	SLOWER=1
	case $FLAVOUR in
	stock) ;;
	debug)
		RELEASE=$VERSION-debug
		KCOMPILER=("${DEBUG_COMPILER[@]}")
		KTREE=$CACHE/debug-$VERSION-$(cache_key 1 "$SYSROOT_KEY" "${KCOMPILER[*]}" \
			"$(declare -f make_debug_kernel)" "$(cat "$TOP/scripts/debug.config")")
		KROOT=$KTREE/root
		KIMAGE=$KTREE/vmlinux
		MODULE_DIR=$BUILD/module-debug
		SLOWER=$DEBUG_SLOWER
		;;
	*) die "FLAVOUR=$FLAVOUR: it can be stock or debug" ;;
	esac
}

# Once for each call of make, not by each script that it leads to.
say_kernel() {
	[ -z "${RIVET_KERNEL_SAID:-}" ] || return 0
	export RIVET_KERNEL_SAID=1
	local why="the tested default"
	if [ -n "${KERNEL:-}" ]; then
		why="chosen by KERNEL="
	elif [ "$VERSION" != "$DEFAULT_KERNEL" ]; then
		why="instead of $DEFAULT_KERNEL, which has left the archive"
	fi
	[ "$FLAVOUR" = stock ] || why="$why; compiled with $FLAVOUR.config"
	say "Kernel $RELEASE ($why)"
}

apt_update() {
	cp -L /etc/resolv.conf "$SYSROOT/etc/resolv.conf" 2>/dev/null || :
	retry in_sysroot apt-get -o Acquire::Retries=3 update
}

# package_version PACKAGE: all versions in the archive, newest first.
package_versions() {
	in_sysroot apt-cache madison "$1" | awk -F'|' '{ gsub(/ /, "", $2); print $2 }'
}

# usable_version KERNEL: the package version at which the image, its headers
# and the source of its series are all to be had, or nothing.
usable_version() {
	local v=$1 series found p
	series=$(cut -d. -f1,2 <<<"$v")
	for found in $(package_versions "linux-binary-$v"); do
		for p in linux-{modules,base,headers}-"$v" "linux-source-$series"; do
			package_versions "$p" | grep -qxF "$found" || continue 2
		done
		echo "$found"
		return
	done
}

# The kernels of the plain amd64 flavour for which usable_version holds,
# newest first. The source is the rarest part, so start from it.
available_kernels() {
	local series v
	for series in $(in_sysroot apt-cache search --names-only '^linux-source-[0-9]' |
		sed -n 's/^linux-source-\([0-9.]*\) .*/\1/p' | sort -rV); do
		for v in $(in_sysroot apt-cache search --names-only "^linux-binary-${series//./\\.}\." |
			sed -n 's/^linux-binary-\([0-9.]*+deb[0-9]*-amd64\) .*/\1/p' | sort -rV); do
			[ -z "$(usable_version "$v")" ] || echo "$v"
		done
	done
}

# resolve_kernel: settle VERSION and PKGVERSION against the archive.
resolve_kernel() {
	local list instead
	PKGVERSION=$(usable_version "$VERSION")
	[ -z "$PKGVERSION" ] || return 0

	list=$(available_kernels)
	[ -n "$list" ] || die "the archive offers no kernel with headers and source of one version" \
		"look at $LOGS/kernel-list.log, and try again later"
	if [ -n "${KERNEL:-}" ]; then
		# shellcheck disable=SC2086 # one line each
		die "KERNEL=$KERNEL is not (or no longer completely) in $BACKPORTS; available:" $list
	fi
	instead=$(grep -m1 "^$(cut -d. -f1,2 <<<"$DEFAULT_KERNEL" | sed 's/\./\\./')\." <<<"$list") ||
		instead=$(head -n 1 <<<"$list")
	say "The tested kernel $DEFAULT_KERNEL has left the archive."
	say "Available: ${list//$'\n'/, }"
	say "Taking $instead; KERNEL= chooses another one. It was not tested with this version."
	echo "$instead" >"$KERNEL_CHOICE"
	choose_kernel
	PKGVERSION=$(usable_version "$VERSION")
}

fetch_kernel() {
	local series p
	series=$(cut -d. -f1,2 <<<"$VERSION")
	begin_dir "$KPKG"
	mkdir "$KPKG/deb" "$KPKG/root" "$KSOURCE"
	cd "$KPKG/deb" || return 1
	# apt checks the signatures of the lists and the sums of the files.
	retry in_sysroot apt-get -o Acquire::Retries=3 -o APT::Sandbox::User=root download \
		linux-{binary,modules,base,headers}-"$VERSION=$PKGVERSION" \
		"linux-source-$series=$PKGVERSION"
	echo "unpacking the packages"
	for p in *.deb; do
		in_sysroot dpkg-deb -x "$p" "$KPKG/root"
	done
	echo "unpacking the source"
	# Half of its bulk are register lists of one GPU driver.
	in_sysroot tar -xf "$KPKG/root/usr/src/linux-source-$series.tar.xz" -C "$KSOURCE" \
		--strip-components=1 --exclude='*/amd/include/asic_reg/*'
	cd "$TOP" || return 1
	rm -rf "$KPKG/deb" "$KPKG/root/usr/src/linux-source-$series.tar.xz"
	echo "indexing the modules"
	in_sysroot depmod -b "$KPKG/root/usr" "$VERSION"
	# The kernel proper out of its compressed wrapper: QEMU starts it directly,
	# which saves each emulated boot some seconds of decompression.
	in_sysroot bash "$KSOURCE/scripts/extract-vmlinux" \
		"$KPKG/root/usr/lib/modules/$VERSION/vmlinuz" >"$KPKG/vmlinux"
	echo "$PKGVERSION" >"$KPKG/version"
	end_dir "$KPKG"
}

make_tree() {
	local headers=$KROOT/usr/src/linux-headers-$VERSION missing
	begin_dir "$KTREE"
	cp "$headers/.config" "$KTREE/.config"
	in_sysroot make -j"$(nproc)" -C "$KSOURCE" O="$KTREE" KERNELRELEASE="$VERSION" \
		CC="$KERNEL_CC" HOSTCC="$KERNEL_HOSTCC" olddefconfig
	diff "$headers/.config" "$KTREE/.config" ||
		{ echo "the configuration changed: not the compilers of Debian's build?" && return 1; }
	in_sysroot make -j"$(nproc)" -C "$KSOURCE" O="$KTREE" KERNELRELEASE="$VERSION" \
		CC="$KERNEL_CC" HOSTCC="$KERNEL_HOSTCC" prepare modules_prepare
	cp "$headers/Module.symvers" "$headers/vmlinux" "$KTREE/"
	# Soft-iWARP, which Debian leaves out.
	in_sysroot make -j"$(nproc)" -C "$KTREE" M="$KSOURCE/drivers/infiniband/sw/siw" \
		MO="$KTREE/siw" CC="$KERNEL_CC" CONFIG_RDMA_SIW=m modules

	# The names of Rust symbols are hashes of what the compiler saw: each one
	# of ours must be among those that the stock kernel exports.
	missing=$(sed -n 's/^EXPORT_SYMBOL_RUST_GPL(\(_R.*\));$/\1/p' \
		"$KTREE"/rust/exports_{core,kernel}_generated.h | sort |
		comm -23 - <(cut -f2 "$KTREE/Module.symvers" | sort) | wc -l)
	[ "$missing" -eq 0 ] ||
		{ echo "$missing Rust symbols of the prepared tree are not in the stock kernel" && return 1; }
	end_dir "$KTREE"
}

# make_debug_kernel: kernel, modules and tree in one folder. What only links them
# is removed at the end: it is most of the bulk.
make_debug_kernel() {
	local make=(make -j"$(nproc)" -C "$KSOURCE" O="$KTREE" KERNELRELEASE="$RELEASE" "${KCOMPILER[@]}")
	local missing
	begin_dir "$KTREE"
	in_sysroot "${make[@]}" KCONFIG_ALLCONFIG="$TOP/scripts/debug.config" allnoconfig
	missing=$(grep '^CONFIG_' "$TOP/scripts/debug.config" | grep -vxFf "$KTREE/.config" || :)
	[ -z "$missing" ] ||
		{ echo "the kernel does not take from scripts/debug.config:" && echo "$missing" && return 1; }
	in_sysroot "${make[@]}" vmlinux modules
	in_sysroot "${make[@]}" INSTALL_MOD_PATH="$KROOT/usr" modules_install
	rm -f "$KROOT/usr/lib/modules/$RELEASE/build"
	find "$KTREE" \( -name scripts -o -name tools -o -name rust -o -name root \) -prune -o \
		\( -name '*.o' -o -name '*.a' -o -name '*.ko' -o -name '*.cmd' -o -name '*.mod*' \) \
		-type f -exec rm -f {} +
	rm -f "$KTREE"/.tmp_vmlinux* "$KTREE"/vmlinux.unstripped
	end_dir "$KTREE"
}

need_kernel() {
	if ! is_complete "$KPKG"; then
		step "Kernel list" "10 s" kernel-list.log "check the network" apt_update
		resolve_kernel
	fi
	say_kernel
	is_complete "$KPKG" || step "Kernel packages and source" "1 min" kernel-packages.log \
		"check the network and the disk; a new run starts this step again" fetch_kernel
	is_complete "$KTREE" || case $FLAVOUR in
	stock) step "Rust metadata of the kernel" "1 to 2 min" kernel-tree.log \
		"remove $KTREE and run again; with KERNEL= try another version" make_tree ;;
	debug) step "Debug kernel" "6 to 12 min" kernel-debug.log \
		"a new run starts this step again; with KERNEL= try another version" make_debug_kernel ;;
	esac
}
