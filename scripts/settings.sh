# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034 # read by the scripts that source this
#
# What the build depends on: the tested kernel and the package lists. The keys
# of the cached folders are hashes of these values (see cache_key in lib.sh).

SUITE=trixie
BACKPORTS=$SUITE-backports

# The kernel that this version was tested with; KERNEL= chooses another one.
DEFAULT_KERNEL=7.3.4+deb13-amd64

# The compiler that Debian built that kernel with, by the name it records.
KERNEL_CC=x86_64-linux-gnu-gcc-14
KERNEL_HOSTCC=gcc-14

# Which of the two kernels: stock, or debug (see kernel.sh), whose compiler has
# to be clang, as Rust under KASAN wants it, and which is so many times slower
# that limits of time are that much longer.
FLAVOUR=${FLAVOUR:-stock}
DEBUG_COMPILER=(LLVM=-19)
DEBUG_SLOWER=4

# One CPU model everywhere: "max" means another CPU in each QEMU version, and
# the number of instructions of a job depends on it.
QEMU_CPU=Haswell-v4

# Packages that the host needs: command or file that shows it is there, package.
HOST_PACKAGES="
	mmdebstrap:mmdebstrap
	unshare:util-linux
	flock:util-linux
	setpriv:util-linux
	/usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
"

# The toolchain: what builds the kernel tree, the module and the images, and
# the QEMU that runs them, so that every host uses the same versions.
SYSROOT_PACKAGES="build-essential gcc-14 flex bison bc libelf-dev libssl-dev
	libdw-dev cpio kmod rsync rustc rust-src bindgen rustfmt rust-clippy
	clang-19 lld-19 llvm-19 libclang-19-dev pahole zstd xz-utils python3
	ca-certificates qemu-system-x86 libibverbs-dev librdmacm-dev
	squashfs-tools shellcheck cargo librust-loom-dev"

# The guest's user space. A root of its own: perf comes from backports, and
# its libraries must not meet the development files of the toolchain.
GUEST_PACKAGES="busybox-static bash iproute2 iputils-ping ethtool rdma-core
	ibverbs-providers ibverbs-utils rdmacm-utils perftest librdmacm1t64
	bpftrace linux-perf/$BACKPORTS nvme-cli fio strace procps util-linux
	kmod less vim-tiny python3-minimal tcpdump e2fsprogs xfsprogs dmsetup"
