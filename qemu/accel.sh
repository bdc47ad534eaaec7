# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Which accelerator: TCG unless KVM proves itself. /dev/kvm says nothing, as a
# nested host can have it and still crawl or die in the guest's first steps, so
# a short timed boot decides, once for each host and kernel.

KVM_PROBE_SECONDS=15

choose_accel() {
	local result
	case ${ACCEL:-} in
	tcg | kvm) return ;;
	"") ;;
	*) die "ACCEL=$ACCEL: it can be kvm or tcg" ;;
	esac
	ACCEL=tcg
	[ -e /dev/kvm ] || return 0

	result=$CACHE/kvm-$(cache_key "$RELEASE" "$SYSROOT_KEY" "$(uname -r)" \
		"$(cat /proc/sys/kernel/random/boot_id)")
	if [ ! -s "$result" ]; then
		say "Does KVM work here? A boot decides (at most $KVM_PROBE_SECONDS s, once)."
		if run_monitor run kvm --name kvm-probe --quiet --retry 0 --smp 2 \
			--timeout "$KVM_PROBE_SECONDS" --idle "$KVM_PROBE_SECONDS" --grace 0 -- true \
			>"$LOGS/kvm-probe.log" 2>&1; then
			echo kvm >"$result"
		else
			echo tcg >"$result"
		fi
		note "$(cat "$result") it is; ACCEL=kvm or ACCEL=tcg overrides this"
	fi
	ACCEL=$(cat "$result")
}
