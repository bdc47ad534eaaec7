#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Memory of users as it comes: at odd addresses, in many pieces, in huge pages.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"

# pieces SEED: at addresses that the disk just allows.
pieces() {
	local said
	a_target 32 && connects || return
	said=$(vectors "$DISK" 300 "$1" 2>&1) || fail "$said"
	progress "seed $1: $said"
	disconnects
}

huge_pages() {
	local said
	echo 24 >/proc/sys/vm/nr_hugepages
	[ "$(cat /proc/sys/vm/nr_hugepages)" -ge 24 ] || skip "there are no 24 huge pages"
	a_target 32 && connects || return
	said=$(vectors "$DISK" 200 7 huge 2>&1) || fail "$said"
	fio_run huge --rw=randrw --bsrange=4k-1M --iodepth=16 --size=16M --ioengine=libaio --direct=1 --mem=mmaphuge --hugepage-size=2M
	disconnects
}

# aligned ALIGNMENT: buffers of fio that begin so far into a page.
aligned() {
	a_target 32 && connects || return
	fio_run aligned --rw=randrw --bsrange=512-512k --blockalign=512 --iodepth=16 --size=16M --ioengine=libaio --direct=1 \
		--mem_align="$1"
	disconnects
}

after() { echo 0 >/proc/sys/vm/nr_hugepages; }

nvme_tests "pieces 1" "pieces 2" "pieces 3" huge_pages "aligned 4" "aligned 516"
