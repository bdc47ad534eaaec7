#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What is written is what is read, in all sizes and ways.

# shellcheck source=selftests/nvme/lib.sh
. "${0%/*}/lib.sh"
need_tools fio

# mix DEPTH JOBS SIZE ENGINE OPTION...: reads and writes from 512 B to 1 MiB, at
# random. Each job has SIZE MiB of its own.
mix() {
	local depth=$1 jobs=$2 size=$3 engine=$4
	shift 4
	a_target $((jobs * size)) && connects || return
	fio_run mix --rw=randrw --bsrange=512-1M --blockalign=512 --rwmixread=40 --iodepth="$depth" --numjobs="$jobs" \
		--size="${size}M" --offset_increment="${size}M" --ioengine="$engine" "$@"
	disconnects
}

# small DEPTH ENGINE OPTION...: all of 512 B to 8 KiB, where in-capsule data ends.
small() {
	a_target 16 && connects || return
	fio_run small --rw=randrw --bsrange=512-8704 --blockalign=512 --iodepth="$1" --size=4M --ioengine="$2" "${@:3}"
	disconnects
}

nvme_tests "small 1 libaio --direct=1" "small 32 io_uring --direct=1" \
	"mix 1 1 16 libaio --direct=1" "mix 1 1 16 io_uring --direct=1" "mix 32 1 32 libaio --direct=1" \
	"mix 32 1 32 io_uring --direct=1" "mix 128 1 64 io_uring --direct=1" "mix 16 4 16 libaio --direct=1" \
	"mix 1 2 16 psync --direct=0 --end_fsync=1" "mix 8 2 16 io_uring --direct=0 --end_fsync=1"
