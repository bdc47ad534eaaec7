# SPDX-License-Identifier: GPL-2.0
"""Boots the virtual machine for one job and watches it.

Runs inside the toolchain root. Three serial ports are files: the kernel's log
(kept as NAME.console), what the job prints (shown, and kept as NAME.out) and
its results (NAME.results). The exit status of the job comes on the second one,
behind a token that only this run knows.

Exit status: the job's; 1 when the job succeeded but the kernel complained;
120 when the guest crashed or stopped answering with rivet in its trace, 121
when without; 122 when a limit of time was reached without a trace of why.
"""

import argparse
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import cpio

# What a healthy kernel does not print. The debug kernel's own checks come last, with
# what they say when they give up: a gate that is open must not look like a pass.
TROUBLE = re.compile(
    r"-\[ cut here \]-|WARNING: (?:CPU|.* at )|\bBUG: |\bOops: |general protection fault"
    r"|rcu: INFO: .*stall|rcu_\w+ .*stall|INFO: task .* blocked for|INFO: task hung"
    r"|refcount_t: |scheduling while atomic|sleeping function called|soft lockup|hard LOCKUP"
    r"|Kernel panic - |Fatal exception|double free|unable to handle"
    r"|rivet\w*: .* mappings were left|rivet\w*: .*could not be de"
    r"|list_(?:add|del) corruption|DMA-API: .* device driver|UBSAN: |ODEBUG: (?!selftest)|KASAN: "
    r"|possible (?:circular|recursive) locking|lock inversion dependency|unsafe lock order"
    r"|inconsistent lock state|Invalid wait context|Nested lock was not taken|bad contention"
    r"|bad unlock balance|held lock freed|lock held when returning|still has locks held"
    r"|suspicious RCU usage|turning off the locking correctness validator"
    r"|kmemleak: unreferenced object|kmemleak: Cannot |kmemleak: .*detector disabled"
)
PANIC = re.compile(r"Kernel panic - |Fatal exception|KVM internal error")
# A line of a trace that names one of these modules; the "Modules linked in" line of
# every trace names them too and does not count. A leak is looked for when they may
# be gone: then its trace has bare addresses, and no other module is removed for good.
OURS = re.compile(
    r"\[rivet(?:_\w+)?\]|Workqueue: .*rivet|Comm: rivet|comm \"rivet"
    r"|kmemleak: +(?:\[<[0-9a-f]+>\] )?0xffffffff[a-f][0-9a-f]{7}$"
)
# Where a report ends, if no other begins before.
REPORT_END = re.compile(r"-\[ end trace |\] ={40,}$")
REPORT_LINES = 120
# Reports that are known, of the kernel's own, and why they are not ours to mend. Only
# those without rivet in them are let pass; they are shown.
KNOWN = ()

# The disk of the other machine of a pair.
OTHER_DISK = 64 << 20

JOB_FAILED = 1
CRASH_OURS, CRASH_ELSEWHERE, TIMED_OUT = 120, 121, 122


def say(text):
    print(text, flush=True)


class Tail:
    """What was appended to a file since the last look."""

    def __init__(self, path):
        open(path, "wb").close()
        self.file = open(path, "rb")

    def read(self):
        return self.file.read()


class Machine:
    """The machine that runs the job; its end of a pair is a."""

    end = "a"

    def __init__(self, args):
        self.args = args
        self.job = args.job
        self.other = None
        self.token = "rivet-" + secrets.token_hex(8)
        self.dir = os.path.join(args.build, "vm", args.name)
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir)
        self.logs = os.path.join(args.build, "logs")
        self.process = None

    def log(self, kind):
        return os.path.join(self.logs, f"{self.args.name}.{kind}")

    # ---- what goes in ------------------------------------------------------

    def run_env(self):
        """The guest's orders, as a shell file."""
        args = self.args
        values = dict(pair.split("=", 1) for pair in args.env)
        values["RIVET_VM"] = self.describe()
        values["RIVET_SLOWER"] = str(args.slower)
        values["RIVET_ICOUNT"] = "1" if args.icount else ""
        values["RIVET_PAIR"] = self.end if args.mode == "pair" else ""
        lines = [f"export {key}={shlex.quote(value)}" for key, value in values.items()]
        lines.append(f"TOKEN={self.token}")
        lines.append(f"MODE={args.mode} ROOT={'1' if args.root else ''}")
        lines.append("JOB=(" + " ".join(map(shlex.quote, self.job)) + ")")
        if args.mode == "shell":
            size = shutil.get_terminal_size()
            lines.append(f"GUEST_ROWS={size.lines} GUEST_COLS={size.columns}")
            lines.append(f"GUEST_TERM={shlex.quote(os.environ.get('TERM', 'linux'))}")
        return "\n".join(lines) + "\n"

    def whole_root(self):
        return self.args.mode == "shell" or self.args.root

    def write_initrd(self):
        """The cached base, and behind it all that this checkout adds."""
        args = self.args
        path = os.path.join(self.dir, "initrd")
        with open(path, "wb") as out:
            for part in ("base", "more") if self.whole_root() else ("base",):
                with open(os.path.join(args.image, f"{part}.cpio"), "rb") as archive:
                    shutil.copyfileobj(archive, out, 1 << 20)
            archive = cpio.Writer(out)
            archive.file("init", os.path.join(args.top, "qemu/init"))
            archive.file("rivet/lib.sh", os.path.join(args.top, "qemu/guest/lib.sh"))
            archive.tree("rivet/guest", os.path.join(args.top, "qemu/guest"))
            for folder in ("selftests", "bench", "scripts/profile.d"):
                if os.path.isdir(os.path.join(args.top, folder)):
                    archive.tree(f"rivet/{folder}", os.path.join(args.top, folder))
            archive.file("rivet/scripts/profile", os.path.join(args.top, "scripts/profile"))
            programs = os.path.join(args.build, "bin")
            if os.path.isdir(programs):
                archive.tree("rivet/bin", programs)
            for module in args.module:
                archive.file(f"rivet/{os.path.basename(module)}", module)
            archive.data("rivet/run.env", self.run_env().encode())
            archive.end()
        return path

    def qemu_version(self):
        return subprocess.run(
            ["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[3]

    def accelerator(self):
        if self.args.accel == "kvm":
            return "KVM"
        if self.args.icount:
            return "TCG counting instructions (icount)"
        return "TCG multi-thread"

    def describe(self):
        args = self.args
        nodes = f" on {args.nodes} nodes" if args.nodes > 1 else ""
        return (
            f"QEMU {self.qemu_version()} -cpu {args.cpu}, {self.accelerator()}, "
            f"{args.smp} vCPU, {args.mem} MiB{nodes}, kernel {args.version}"
        )

    def nodes(self):
        """Memory nodes, each with an equal share of memory and CPUs."""
        args = self.args
        if args.nodes == 1:
            return []
        memory, cpus = args.mem // args.nodes, args.smp // args.nodes
        options = []
        for node in range(args.nodes):
            options += ["-object", f"memory-backend-ram,id=memory{node},size={memory}M"]
            options += ["-numa", f"node,nodeid={node},memdev=memory{node},"
                        f"cpus={node * cpus}-{node * cpus + cpus - 1}"]
        return options

    def command(self, initrd):
        args = self.args
        if args.accel == "kvm":
            accel = ["-accel", "kvm"]
        elif args.icount:
            accel = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]
        else:
            accel = ["-accel", "tcg,thread=multi"]
        append = ["console=ttyS0,115200", "panic=-1", "oops=panic", "tsc=reliable"]
        append += ["panic_sys_info=all_bt,blocked_tasks", "rdinit=/init"]
        command = ["qemu-system-x86_64", "-name", f"rivet-{args.name}", "-nodefaults"]
        command += ["-no-user-config", "-display", "none", "-no-reboot"]
        command += ["-machine", "q35", *accel, "-cpu", args.cpu]
        command += ["-smp", str(args.smp), "-m", str(args.mem), *self.nodes()]
        command += ["-kernel", args.kernel, "-initrd", initrd]
        if args.mode == "shell":
            append += ["loglevel=4"]
            command += ["-chardev", f"stdio,id=tty,mux=on,signal=off,logfile={self.log('console')}"]
            command += ["-serial", "chardev:tty", "-mon", "chardev=tty"]
        else:
            append += ["ignore_loglevel" if args.verbose_kernel else "loglevel=7"]
            # A line of its own for each port: the ISA ones would share them.
            for port, (name, irq) in enumerate((("console", 4), ("out", 3), ("results", 10))):
                append_to = "on" if self.end == "b" else "off"
                command += ["-chardev", f"file,id={name},path={self.path(name)},append={append_to}"]
                command += ["-device", f"isa-serial,chardev={name},index={port},irq={irq}"]
            command += ["-qmp", f"unix:{self.dir}/qmp,server=on,wait=off"]
        if args.trace_blocks:
            # Where kernels put modules. Each block is logged when it is translated.
            command += ["-d", "in_asm", "-dfilter", "0xffffffffc0000000..0xfffffffffeffffff"]
            command += ["-D", self.log("blocks")]
        if args.mode == "pair":
            command += self.network()
        if self.whole_root():
            command += ["-drive", f"file={args.disk},format=raw,if=none,id=root,readonly=on"]
            command += ["-device", "virtio-blk-pci,drive=root"]
        command += ["-append", " ".join(append + args.append)]
        return command

    def far_dir(self):
        return self.other.dir

    def network(self):
        """What joins a and b; datagrams for one that is not there are lost, as on a wire."""
        number = ord(self.end) - ord("a") + 1
        command = ["-netdev", "dgram,id=net,local.type=unix,remote.type=unix,"
                   f"local.path={self.dir}/net,remote.path={self.far_dir()}/net"]
        command += ["-device", f"virtio-net-pci,netdev=net,mac=52:54:00:77:00:0{number},host_mtu=9000"]
        if self.end == "b":
            # What is written there is there when the machine is started again.
            command += ["-drive", f"file={self.data},format=raw,if=none,id=data", "-device", "virtio-blk-pci,drive=data"]
        else:
            command += ["-chardev", f"socket,id=control,path={self.dir}/control,server=on,wait=off"]
            command += ["-device", "isa-serial,chardev=control,index=3,irq=11"]
        return command

    def path(self, port):
        return os.path.join(self.dir, "ttyS1") if port == "out" else self.log(port)

    # ---- the run -----------------------------------------------------------

    def interactive(self):
        initrd = self.write_initrd()
        command = self.command(initrd)
        say(f"{self.describe()}")
        say("It starts in some seconds; leave it with poweroff, or Ctrl-A x.")
        with open(self.log("qemu"), "w+", encoding="utf-8") as log:
            status = subprocess.run(command, stderr=log, check=False).returncode
            if status:
                log.seek(0)
                sys.stdout.write(log.read())
        os.unlink(initrd)
        return status

    def run(self):
        args = self.args
        initrd = self.write_initrd()
        command = self.command(initrd)
        tails = {name: Tail(self.path(name)) for name in ("console", "out", "results")}
        with open(self.log("qemu"), "w", encoding="utf-8") as log:
            log.write(shlex.join(command) + "\n")
            log.flush()
            begin = time.monotonic()
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        os.makedirs(self.logs, exist_ok=True)
        out = open(self.log("out"), "wb")
        pending = held = b""
        status = booted = end = reason = None
        heard = begin
        console = b""
        while True:
            ended = self.process.poll() is not None
            new = {name: tail.read() for name, tail in tails.items()}
            now = time.monotonic()
            if any(new.values()):
                heard = now
            console = (console + new["console"])[-8192:]
            pending += new["out"]
            *lines, pending = pending.split(b"\n")
            for line in lines:
                if line.startswith(self.token.encode()):
                    word = line.split()
                    if word[1] == b"up":
                        booted = now - begin
                    else:
                        status = int(word[2])
                        end = now
                    held = b""  # the newline before the token is not the job's
                    continue
                if line == b"":
                    text, held = held, b"\n"
                else:
                    text, held = held + line + b"\n", b""
                out.write(text)
                if not args.quiet:
                    sys.stdout.buffer.write(text)
            out.flush()
            sys.stdout.flush()
            if self.other:
                self.other.obey()
            if ended:
                break
            if end and now - end > 10:
                break  # the job is done; the guest just does not power off
            if reason is None and status is None:
                if now - begin > args.timeout:
                    reason = f"the limit of {args.timeout} s was reached"
                elif now - heard > args.idle:
                    reason = f"no output for {args.idle} s"
                elif PANIC.search(console.decode(errors="replace")):
                    reason = "panic"
                if reason and reason != "panic":
                    self.interrupt_guest()
                if reason:
                    grace = now + args.grace
            if reason and now > grace:
                break
            time.sleep(0.02)
        self.kill()
        out.write(held + pending)
        out.close()
        if not args.quiet:
            sys.stdout.buffer.write(held + pending)
            sys.stdout.flush()
        os.unlink(initrd)
        return self.judge(status, booted, reason, time.monotonic() - begin)

    def interrupt_guest(self):
        """An NMI makes the guest panic, and print what each CPU does."""
        self.order("inject-nmi")

    def order(self, command):
        """Has QEMU's monitor do this."""
        try:
            with socket.socket(socket.AF_UNIX) as qmp:
                qmp.settimeout(2)
                qmp.connect(f"{self.dir}/qmp")
                stream = qmp.makefile("rw")
                stream.readline()
                for order in ("qmp_capabilities", command):
                    stream.write(json.dumps({"execute": order}) + "\n")
                    stream.flush()
                    stream.readline()
        except OSError:
            pass

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    # ---- afterwards --------------------------------------------------------

    def judge(self, status, booted, reason, seconds):
        args = self.args
        with open(self.log("console"), encoding="utf-8", errors="replace") as file:
            console = file.read().replace("\r", "").splitlines()
        reports = find_reports(console)
        with open(self.log("json"), "w", encoding="utf-8") as file:
            json.dump(
                {
                    "kernel": args.version,
                    "qemu": self.qemu_version(),
                    "cpu_model": args.cpu,
                    "accel": self.accelerator(),
                    "cpus": args.smp,
                    "memory_mib": args.mem,
                    "status": status,
                    "boot_seconds": booted,
                    "seconds": round(seconds, 2),
                    "append": args.append,
                    "reports": [report.__dict__ for report in reports],
                },
                file,
                indent=1,
            )
        boot = f"up after {booted:.1f} s" if booted else "never came up"
        for report in reports:
            if report.known:
                say(f"vm {args.name}: known, line {report.line + 1} of the log: {report.what}: {report.known}")
        reports = [report for report in reports if not report.known]
        trouble = [report.line for report in reports]
        if status is None or reason:
            return self.report_crash(console, reports, reason or "QEMU ended", boot, seconds)
        if reports and not args.allow_warnings:
            say(f"vm {args.name}: the kernel complained ({len(reports)} times), in {self.log('console')}:")
            for report in reports:
                say(f"  {'rivet' if report.ours else 'other'}, line {report.line + 1}: {report.what}")
            show_around(console, trouble)
            return status or JOB_FAILED
        if not args.quiet:
            say(f"vm {args.name}: {boot}, {seconds:.1f} s in all, exit status {status}")
        return status

    def report_crash(self, console, reports, reason, boot, seconds):
        trouble = [report.line for report in reports]
        ours = any(OURS.search(line) for line in console[trouble[0] if trouble else 0 :])
        say(f"vm {self.args.name}: the guest did not finish its job: {reason} ({boot}, {seconds:.1f} s in all)")
        if trouble:
            show_around(console, trouble)
        else:
            say("The last lines of its log:")
            for line in console[-25:]:
                say(f"  | {line}")
        with open(self.log("qemu"), encoding="utf-8", errors="replace") as file:
            said = file.read().splitlines()[1:]
            for line in said:
                if "support requested feature" in line:
                    continue
                say(f"  QEMU: {line}")
        say(f"The whole log: {self.log('console')}")
        if ours:
            say("rivet is in the trace: this counts as a failure of rivet.")
            return CRASH_OURS
        if reason.startswith("the limit"):
            return TIMED_OUT
        say("rivet is not in the trace.")
        return CRASH_ELSEWHERE


class Other(Machine):
    """The other machine of a pair: it comes and goes as the job on the first one says.

    That job writes a word to ttyS3 and reads "done" there: "start" (answered when the
    job of this machine has printed "ready"), "kill" (as by pulling the plug), "stop"
    and "cont" (all of it stands still for a while).
    """

    end = "b"

    def __init__(self, args, first):
        args = argparse.Namespace(**vars(args))
        args.name += "-b"
        args.root = False
        args.mem = args.other_mem
        super().__init__(args)
        self.job = args.other.split()
        self.first = first
        self.control = None
        self.said = b""
        self.starting = False
        for name in ("console", "out", "results"):
            open(self.path(name), "wb").close()
        self.data = os.path.join(self.dir, "data")
        with open(self.data, "wb") as data:
            data.truncate(OTHER_DISK)

    def far_dir(self):
        return self.first.dir

    def start(self):
        self.kill()
        open(self.path("out"), "wb").close()
        command = self.command(self.write_initrd())
        log = open(self.log("qemu"), "ab")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        log.close()
        self.starting = True

    def is_ready(self):
        with open(self.path("out"), "rb") as out:
            return b"ready\n" in out.read()

    def answer(self):
        self.control.sendall(b"done\n")

    def obey(self):
        """Does what the first machine wants, if it wants something."""
        try:
            if not self.control:
                control = socket.socket(socket.AF_UNIX)
                control.setblocking(False)
                control.connect(f"{self.first.dir}/control")
                self.control = control
            self.said += self.control.recv(4096)
        except (BlockingIOError, FileNotFoundError, ConnectionRefusedError):
            pass
        *orders, self.said = self.said.split(b"\n")
        for order in (order.strip() for order in orders):
            if order == b"start":
                self.start()
                continue
            if order == b"kill":
                self.kill()
            elif order in (b"stop", b"cont"):
                self.order(order.decode())
            self.answer()
        if self.starting and self.is_ready():
            self.starting = False
            self.answer()

    def complaints(self):
        """What its kernel has complained of, each time that it ran. Returns whether it has."""
        self.kill()
        if os.path.exists(f"{self.dir}/initrd"):
            os.unlink(f"{self.dir}/initrd")
        with open(self.log("console"), encoding="utf-8", errors="replace") as file:
            console = file.read().replace("\r", "").splitlines()
        reports = [report for report in find_reports(console) if not report.known]
        shutil.copyfile(self.path("out"), self.log("out"))
        if not reports:
            return False
        say(f"vm {self.args.name}: the kernel complained ({len(reports)} times), in {self.log('console')}:")
        show_around(console, [report.line for report in reports])
        return True


class Report:
    """One complaint of the kernel: where it begins, what its first line says."""

    def __init__(self, lines, begin, end):
        self.line = begin
        # After "cut here" comes what it is about.
        what = lines[begin + 1] if "cut here" in lines[begin] and begin + 1 < end else lines[begin]
        self.what = re.sub(r"^\[ *[\d.]+\](?:\[ *\w+\])? ", "", what)
        self.ours = self.what.startswith("rivet") or any(map(OURS.search, lines[begin:end]))
        text = "\n".join(lines[begin:end])
        self.known = None
        if not self.ours:
            self.known = next((why for pattern, why in KNOWN if pattern.search(text)), None)


def find_reports(lines):
    """The kernel's complaints, each with all of its lines up to its end or the next."""
    reports, n = [], 0
    while n < len(lines):
        if not TROUBLE.search(lines[n]):
            n += 1
            continue
        # "cut here", the reason and "WARNING: at" are one.
        end = n + (4 if "cut here" in lines[n] else 1)
        while end < min(len(lines), n + REPORT_LINES) and not REPORT_END.search(lines[end]):
            if TROUBLE.search(lines[end]):
                break
            end += 1
        end = min(end, len(lines))
        reports.append(Report(lines, n, end))
        n = end
    return reports


def show_around(lines, marks, before=2, after=30, most=120):
    """Prints the marked lines with what stands around them."""
    wanted = set()
    for mark in marks:
        wanted.update(range(max(0, mark - before), min(len(lines), mark + after)))
    last = None
    for count, number in enumerate(sorted(wanted)):
        if count == most:
            say("  | … (more in the log)")
            break
        if last is not None and number != last + 1:
            say("  | …")
        say(f"  | {lines[number]}")
        last = number


def main():
    parser = argparse.ArgumentParser()
    for name in ("name", "top", "build", "image", "kernel", "version", "cpu", "accel", "mode"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--disk")
    parser.add_argument("--module", action="append", default=[])
    parser.add_argument("--smp", type=int, default=2)
    parser.add_argument("--mem", type=int, default=2048)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--idle", type=float, default=180)
    parser.add_argument("--slower", type=int, default=1)
    parser.add_argument("--append", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--icount", action="store_true")
    parser.add_argument("--root", action="store_true")
    parser.add_argument("--other")
    parser.add_argument("--other-mem", type=int, default=1024)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--trace-blocks", action="store_true")
    parser.add_argument("--verbose-kernel", action="store_true")
    parser.add_argument("--allow-warnings", action="store_true")
    parser.add_argument("--grace", type=float, default=10)
    parser.add_argument("--retry", type=int, default=1)
    parser.add_argument("job", nargs="*")
    args = parser.parse_args()
    if args.nodes < 1 or args.smp % args.nodes or args.mem % args.nodes:
        parser.error("--nodes does not divide --smp and --mem")
    args.timeout *= args.slower
    args.idle *= args.slower

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.umask(0o022)
    if args.mode == "shell":
        return Machine(args).interactive()
    for attempt in range(args.retry + 1):
        machine = Machine(args)
        if args.mode == "pair":
            machine.other = Other(args, machine)
        try:
            status = machine.run()
            if machine.other and machine.other.complaints() and not args.allow_warnings:
                status = status or JOB_FAILED
        finally:
            machine.kill()
            if machine.other:
                machine.other.kill()
        if status != CRASH_ELSEWHERE or attempt == args.retry:
            return status
        for kind in ("console", "out", "results"):
            os.replace(machine.log(kind), machine.log(f"{kind}.crash"))
        say(f"vm {args.name}: once more (the log of the crash: {machine.log('console.crash')})")
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
