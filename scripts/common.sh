# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# All of the library, and the chain of steps from an untouched host to the
# point where a module can be built ("modules"), a virtual machine booted
# ("vm"), or the whole guest used ("shell").

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/roots.sh
. "$TOP/scripts/roots.sh"
# shellcheck source=scripts/kernel.sh
. "$TOP/scripts/kernel.sh"
# shellcheck source=scripts/host.sh
. "$TOP/scripts/host.sh"
# shellcheck source=qemu/image.sh
. "$TOP/qemu/image.sh"
choose_kernel
choose_image

all_there() {
	is_complete "$SYSROOT" && is_complete "$KPKG" && is_complete "$KTREE" || return 1
	[ "$1" = modules ] || is_complete "$BASE_IMAGE" || return 1
	[ "$1" != shell ] || is_complete "$SHELL_IMAGE"
}

bootstrap() {
	make_build_dir
	if all_there "$1"; then
		say_kernel
		return
	fi
	check_host
	say "Rivet: preparing in $CACHE what this needs (the first time: some 5 minutes)"
	lock_cache
	install_host_packages
	need_sysroot
	need_kernel
	choose_image
	[ "$1" = modules ] || need_base_image
	[ "$1" != shell ] || need_shell_image
	unlock_cache
}
