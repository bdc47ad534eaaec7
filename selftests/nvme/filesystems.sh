#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# File systems on a disk of the host: made, filled, unmounted, checked.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"
need_tools mkfs.ext4 mkfs.xfs xfs_repair e2fsck

AT=/tmp/mounted

make_fs() {
	case $1 in
	ext4) mkfs.ext4 -q -F "$DISK" ;;
	xfs) mkfs.xfs -q -f "$DISK" ;;
	esac
}
check_fs() {
	case $1 in
	ext4) e2fsck -f -n "$DISK" ;;
	xfs) xfs_repair -n "$DISK" ;;
	esac
}

# filled TYPE
filled() {
	local n out
	a_target 384 && connects && modprobe "$1" && mkdir -p "$AT" || return
	out=$(make_fs "$1" 2>&1) || { fail "mkfs: $out" && return; }
	mount -t "$1" -o discard "$DISK" "$AT" || { fail "mount" && return; }
	mkdir "$AT/small" "$AT/copy"
	for n in {1..300}; do head -c $((n * 37)) /dev/urandom >"$AT/small/$n" || fail "file $n"; done
	head -c 48M /dev/urandom >"$AT/large" || fail "the large file"
	cp -r "$AT/small" "$AT/large" "$AT/copy" || fail "cp"
	find "$AT/small" "$AT/large" -type f -exec sha256sum {} + >/tmp/sums
	# Some go, and what they had is discarded.
	rm "$AT/copy/large" "$AT/copy/small"/*7 || fail "rm"
	fstrim "$AT" || fail "fstrim"
	fio --name=files --directory="$AT" --rw=randrw --bsrange=1k-128k --size=4M --numjobs=2 --ioengine=libaio --iodepth=8 \
		--direct=1 --verify=crc32c --fsync=64 --output=/tmp/fio.files 2>&1 || fail "fio: $(tail -n 5 /tmp/fio.files)"
	umount "$AT" || { fail "umount" && return; }
	out=$(check_fs "$1" 2>&1) || fail "it is not clean: $out"
	disconnects
	wait_for 20 no_disks || fail "the disk stays"
	# It is all on the target.
	connects
	mount -t "$1" "$DISK" "$AT" || { fail "mount, the second time" && return; }
	sha256sum --quiet -c /tmp/sums || fail "files are not what was written"
	umount "$AT" || fail "umount, the second time"
	disconnects
}

after() {
	! mountpoint -q $AT || umount $AT || umount -l $AT
	rm -rf $AT /tmp/sums
}

nvme_tests "filled ext4" "filled xfs"
