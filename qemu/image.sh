# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# The two cached images of the virtual machine:
#
#   BASE_IMAGE/base.cpio       tools, their libraries and kernel modules: the
#                              initramfs of every run. Not compressed: that
#                              unpacks fastest in an emulated guest.
#   BASE_IMAGE/more.cpio       modules of which the tools are only in the whole guest
#                              root: behind the base where that is used.
#   SHELL_IMAGE/root.squashfs  the whole guest root, for "make shell" (lz4: zstd costs an
#                              emulated guest too much time)
#
# What changes with each build (the module, the tests) is put behind the base
# as a second archive at every start; see monitor.py.

# Whole packages, of which the base image takes the commands.
BASE_PACKAGES="bash coreutils grep sed mawk findutils util-linux kmod procps iproute2
	iputils-ping ethtool perftest ibverbs-utils rdmacm-utils nvme-cli fio strace
	tcpdump linux-perf rdma-core"

# Modules of the stock kernel, to which their dependencies are added.
BASE_MODULES="configfs ib_core ib_uverbs ib_umad rdma_cm rdma_ucm rdma_rxe siw veth
	dummy sch_netem sch_tbf sch_prio sch_ingress cls_u32 cls_matchall cls_flower
	act_mirred act_gact null_blk nvme nvme-rdma nvme-tcp nvmet nvmet-rdma nvmet-tcp
	nvme-fabrics 9p 9pnet_virtio virtio_pci virtio_blk virtio_net virtio_rng
	squashfs overlay loop brd af_packet bridge
	ip_set nf_tables"

# Those that "make shell" and jobs in the whole guest root find besides.
MORE_MODULES="ext4 xfs dm_mod"

choose_image() {
	local recipe
	recipe=$(cache_key 1 "$GUEST_KEY" "$(basename "$KTREE")" "$BASE_PACKAGES" "$BASE_MODULES" \
		"$MORE_MODULES" "$(declare -f make_base_image copy_tools copy_modules archive)")
	BASE_IMAGE=$CACHE/image-$RELEASE-$recipe
	SHELL_IMAGE=$CACHE/shell-$VERSION-$(cache_key 1 "$GUEST_KEY" "$VERSION" \
		"$(declare -f make_shell_image)")
}

# copy_tools STAGE: the commands of BASE_PACKAGES and all they load.
copy_tools() {
	local stage=$1 list=$1.list lib
	# shellcheck disable=SC2016,SC2086 # expanded by the inner shell; a list
	in_root "$GUEST" 0:0 bash -euc '
		dpkg -L "$@" | grep -E "^/(usr/)?s?bin/." | sort -u | while read -r f; do
			[ ! -f "$f" ] || readlink -f "$f"
			[ ! -L "$f" ] || echo "$f"
		done
		find /usr/lib/x86_64-linux-gnu/libibverbs -name "librxe-*.so" \
			-o -name "libsiw-*.so"
		find /usr/lib/x86_64-linux-gnu/libibverbs* -maxdepth 0
		ls /etc/libibverbs.d/rxe.driver /etc/libibverbs.d/siw.driver \
			/etc/passwd /etc/group /etc/nsswitch.conf /etc/protocols \
			/usr/share/terminfo /usr/lib/terminfo -d 2>/dev/null || :
	' tools $BASE_PACKAGES >"$list"
	# What ldd cannot read (scripts, data) it only complains about.
	# shellcheck disable=SC2016 # expanded by the inner shell
	in_root "$GUEST" 0:0 bash -uc 'xargs ldd 2>/dev/null | sed -n \
		"s,.*=> \(/[^ ]*\) .*,\1,p; s,^\s*\(/[^ ]*ld-linux[^ ]*\) .*,\1,p" | sort -u |
		while read -r lib; do echo "$lib"; readlink -f "$lib"; done' <"$list" >"$list.lib"

	mkdir -p "$stage"/usr/{bin,sbin,lib,lib64} "$stage"/etc/libibverbs.d
	for lib in bin sbin lib lib64; do ln -s "usr/$lib" "$stage/$lib"; done
	# The same file can be named with and without /usr: one name for each.
	sed -i -E 's,^/(bin|sbin|lib|lib64)/,/usr/\1/,' "$list" "$list.lib"
	sort -u "$list" "$list.lib" | sed 's,^/,,' |
		tar -C "$GUEST" --no-recursion -cf - -T - | tar -C "$stage" -xf -

	cp "$GUEST/bin/busybox" "$stage/usr/bin/busybox"
	# The real commands win; busybox fills the gaps (vi, nc, httpd, …).
	in_root "$GUEST" 0:0 busybox --list | while read -r lib; do
		[ -e "$stage/usr/bin/$lib" ] || [ -e "$stage/usr/sbin/$lib" ] ||
			[ -L "$stage/usr/bin/$lib" ] || ln -s busybox "$stage/usr/bin/$lib"
	done
	ln -sf bash "$stage/usr/bin/sh"
	rm -f "$list" "$list.lib"
}

# copy_modules STAGE MODULE...: with all they depend on, unpacked (the guest would
# spend seconds on xz), and an index of their own.
copy_modules() {
	local stage=$1
	shift
	# shellcheck disable=SC2016 # expanded by the inner shell
	in_sysroot bash -euc '
		stage=$1 version=$2 tree=$3
		shift 3
		to=$stage/usr/lib/modules/$version
		mkdir -p "$to"
		cp "$tree/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$to/"
		for name; do
			modprobe -d "$tree" -S "$version" --show-depends "$name" ||
				echo "no module $name in this kernel" >&2
		done | sed -n "s/^insmod \([^ ]*\).*/\1/p" | sort -u | while read -r file; do
			name=$to/${file#*/lib/modules/"$version"/}
			mkdir -p "$(dirname "$name")"
			case $file in
			*.xz) xz -dc "$file" >"${name%.xz}" ;;
			*.zst) zstd -qdc "$file" >"${name%.zst}" ;;
			*) cp "$file" "$name" ;;
			esac
		done
		depmod -b "$stage" "$version"
	' modules "$stage" "$RELEASE" "$KROOT/usr" "$@"
}

# archive STAGE FILE
archive() {
	# shellcheck disable=SC2016 # expanded by the inner shell
	in_sysroot bash -euo pipefail -c 'cd "$1" && find . | sort | cpio --quiet -o -H newc -R 0:0 >"$2"' cpio "$@"
	rm -rf "$1"
}

make_base_image() {
	local stage=$BASE_IMAGE/stage more=$BASE_IMAGE/more file
	begin_dir "$BASE_IMAGE"
	mkdir -p "$stage" "$more/usr/lib"
	ln -s usr/lib "$more/lib"
	copy_tools "$stage"
	# shellcheck disable=SC2086 # lists
	copy_modules "$stage" $BASE_MODULES
	# shellcheck disable=SC2086 # lists
	copy_modules "$more" $BASE_MODULES $MORE_MODULES
	# The index is that of all of them.
	(cd "$more" && find . -name '*.ko') | while read -r file; do
		[ ! -e "$stage/$file" ] || rm "$more/$file"
	done
	mkdir -p "$stage"/{dev,proc,sys,tmp,run,root,mnt,var/tmp,rivet}
	ln -s /run "$stage/var/run"
	# The kernel opens it for /init before anything is mounted.
	mknod -m 600 "$stage/dev/console" c 5 1
	archive "$stage" "$BASE_IMAGE/base.cpio"
	archive "$more" "$BASE_IMAGE/more.cpio"
	end_dir "$BASE_IMAGE"
}

make_shell_image() {
	begin_dir "$SHELL_IMAGE"
	in_sysroot mksquashfs "$GUEST" "$SHELL_IMAGE/root.squashfs" -no-progress \
		-comp lz4 -wildcards \
		-e 'var/cache/*' 'var/lib/apt/lists/*' 'usr/share/doc/*' .complete
	end_dir "$SHELL_IMAGE"
}

need_base_image() {
	is_complete "$BASE_IMAGE" && return
	need_guest
	step "Guest image" "20 s" image.log \
		"a new run starts this step again" make_base_image
}

need_shell_image() {
	is_complete "$SHELL_IMAGE" && return
	need_guest
	step "Guest image with all tools" "30 s" shell-image.log \
		"a new run starts this step again" make_shell_image
}
