# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# For the tests with a target that lies: see bad_target.c for the rules that it is
# given. What must hold is the same for all of them: whoever uses the disk gets data
# or an error in time, the controller is there again or gone, the kernel does not
# complain, and an honest target is served after it.

# shellcheck source=selftests/nvme/lib.sh
. "${BASH_SOURCE[0]%/*}/lib.sh"

BADNQN=nqn.2026-01.test:bad
BAD_SAID=/tmp/bad
# A host that gives up soon.
SOON="--reconnect-delay=1 --ctrl-loss-tmo=4 --keep-alive-tmo=2 --nr-io-queues=1"

# against RULE...: a target with these is there.
against() {
	limits io_timeout=3 admin_timeout=3
	rm -f $BAD_SAID
	dmesg -C
	bad_target "$SERVER" 4420 "$@" >$BAD_SAID 2>&1 &
	BAD=$!
	wait_for 10 grep -qs listening $BAD_SAID || { fail "no target: $(<$BAD_SAID)" && exit 1; }
}

connect_bad() {
	# shellcheck disable=SC2086 # words
	connect_to $BADNQN $AT_FIRST $SOON
}

# did RULE...: it has come to each.
did() {
	local rule
	for rule; do grep -qxF "did $rule" $BAD_SAID || fail "the target never came to $rule: $(tail -n 5 $BAD_SAID | tr '\n' ';')"; done
}

# quiet: the kernel has nothing to complain of.
quiet() {
	local line
	line=$(dmesg | grep -m 1 -E 'cut here|WARNING: |BUG: |Oops|refcount_t|list_(add|del) corruption|blocked for|general protection|UBSAN|KASAN')
	[ -z "$line" ] || fail "the kernel complains: $line"
	# What it says of the lie is shown.
	progress "$RULES: $(dmesg --notime | grep -E 'nvme|rivet' | grep -vE 'nvmet|new ctrl|creating|Removing|mapped' | head -n 3 | cut -c 1-110 | tr '\n' '|')"
	[ "$NVME_TRANSPORT" = rdma ] || [ "$(dmesg | grep -cE 'nvme nvme|rivet: ')" -gt 0 ] || fail "not a line says what happened"
}

# honest: none of it matters for another target.
honest() {
	kill -KILL "$BAD"
	wait "$BAD" 2>/dev/null
	all_gone
	a_target 16 && connects || return
	head -c 65536 /dev/urandom >/tmp/honest
	dd if=/tmp/honest of="$DISK" bs=64k oflag=direct status=none && dd if="$DISK" bs=64k count=1 iflag=direct status=none |
		cmp - /tmp/honest || fail "an honest target is not served"
	disconnects
	# For the next one, in the same test.
	no_targets
}

settled() { no_ctrls || [ "$(sort -u /sys/class/nvme/nvme*/state 2>/dev/null)" = live ]; }

# survives RULE...: from the connect on; connecting may fail, and must end.
survives() {
	local begin=$SECONDS
	RULES=$*
	against "$@"
	if connect_bad; then
		wait_for 20 find_disk $BADNQN && timeout $((60 * SLOWER)) dd if="$DISK" of=/dev/null bs=4k count=8 iflag=direct status=none 2>/dev/null
		progress "$RULES: it connects"
	else
		progress "$RULES: an error after $((SECONDS - begin)) s"
		[ $((SECONDS - begin)) -lt $((PATIENCE * SLOWER)) ] || fail "the connect takes $((SECONDS - begin)) s"
	fi
	did "$@"
	wait_for 60 settled || fail "it does not settle: $(cat /sys/class/nvme/nvme*/state)"
	quiet
	honest
}

# lied_to "COMMAND..." RULE...: connected to it, and COMMAND (@ is the disk) runs; it
# may fail, and must end. STATUS is how it ended.
lied_to() {
	local command=$1
	shift
	RULES=$*
	against "$@"
	connect_bad || { fail "connect: $SAID" && return; }
	wait_for 20 find_disk $BADNQN || { fail "no disk" && return; }
	STATUS=0
	# shellcheck disable=SC2086 # words
	timeout $((90 * SLOWER)) ${command//@/$DISK} >/tmp/lied 2>&1 || STATUS=$?
	[ $STATUS -ne 124 ] || fail "$command hangs"
	did "$@"
	wait_for 60 settled || fail "it does not settle: $(cat /sys/class/nvme/nvme*/state)"
	quiet
	honest
}

# Ways to use the disk, with these rules.
READ="dd if=@ of=/dev/null bs=16k count=40 iflag=direct status=none"
WRITE="dd if=/dev/zero of=@ bs=16k count=40 oflag=direct status=none"
SMALL="dd if=/dev/zero of=@ bs=512 count=40 oflag=direct status=none"
DEEP="fio --name=deep --filename=@ --rw=randrw --bsrange=512-64k --iodepth=32 --size=2M --ioengine=libaio --direct=1"

reads() { lied_to "$READ" "$@"; }
writes() { lied_to "$WRITE" "$@"; }
small() { lied_to "$SMALL" "$@"; }
deep() { lied_to "$DEEP" "$@"; }

# What nvme-rdma does not survive, and why: these are skipped with it.
not_for_rdma() { [ "$NVME_TRANSPORT" != rdma ] || skip "nvme-rdma: $1"; }

after() { rm -f $BAD_SAID /tmp/lied /tmp/honest; }
