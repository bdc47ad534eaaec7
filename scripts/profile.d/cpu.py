# SPDX-License-Identifier: GPL-2.0
"""profile cpu: samples of all CPUs by perf, summed up by module, and a flame graph.

Of programs it tells their names only, and those of their libraries.
"""

import bisect
import collections
import os
import re
import subprocess
import tempfile

import flame

RATE = 199  # samples a second and CPU: no multiple of the tick
# Where a CPU is that has nothing to do.
IDLE = re.compile(r"safe_halt$|^default_idle|^intel_idle|^mwait_idle|^acpi_idle|^cpuidle_|^poll_idle|^do_idle$")
KERNEL = "kernel"
FRAME = re.compile(r"^\s+([0-9a-f]+) .*\((.*)\)$")


def cpu_times():
    """Of each CPU: clock ticks busy, in softirq, and all."""
    times = {}
    with open("/proc/stat", encoding="ascii") as file:
        for line in file:
            if match := re.match(r"cpu(\d+) (.*)", line):
                # user nice system idle iowait irq softirq steal
                ticks = [int(value) for value in match[2].split()[:8]]
                times[int(match[1])] = (sum(ticks) - ticks[3] - ticks[4], ticks[6], sum(ticks))
    return times


class Kernel:
    """Its symbols and those of its modules, by address. perf, which could read them too, takes
    minutes where it finds a compressed file for each module."""

    def __init__(self):
        with open("/proc/kallsyms", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
        lines.sort()  # all addresses have as many digits
        self.lines = [line for line in lines if line[17] in "tTwW"]
        self.starts = [int(line[:16], 16) for line in self.lines]

    def is_hidden(self):
        return not self.starts or self.starts[-1] == 0

    def frame(self, address):
        """Its module, and its function."""
        at = bisect.bisect_right(self.starts, address) - 1
        if at < 0:
            return KERNEL, "unknown"
        name, _, module = self.lines[at][19:].partition("\t")
        return module.strip("[]") or KERNEL, flame.demangle(name)


def read_stacks(lines, kernel):
    """perf script's lines -> for each sample, its command and its frames (module, function),
    the outermost first."""
    command, frames = None, []
    for line in lines:
        if not line:
            if command is not None:
                yield command, frames[::-1]
            command, frames = None, []
        elif match := FRAME.match(line):
            address = int(match[1], 16)
            if address >> 63:
                frames.append(kernel.frame(address))
                continue
            program = os.path.basename(match[2]).strip("[]")
            if not frames or frames[-1][0] != program:
                frames.append((program, "user space"))
        elif command is None:
            command = line.strip()
    if command is not None:
        yield command, frames[::-1]


def is_idle(frames):
    return bool(frames) and bool(IDLE.search(frames[-1][1]))


def record(seconds, path):
    """None, or why perf did not."""
    # A clock that every machine has.
    command = ["perf", "record", "-q", "-B", "-N", "-a", "-e", "cpu-clock", "-F", str(RATE)]
    command += ["--call-graph", "fp", "-o", path, "--", "sleep", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr or done.stdout).strip()


def profile(seconds, svg):
    with tempfile.TemporaryDirectory() as folder:
        path, nothing = os.path.join(folder, "perf.data"), os.path.join(folder, "nothing")
        os.mkdir(nothing)
        print(f"Looking for {seconds} s", flush=True)
        before = cpu_times()
        problem = record(seconds, path)
        after = cpu_times()
        if problem is not None:
            return "perf record failed", problem
        print("Reading what was seen", flush=True)
        # It is to look for no symbols: those of the kernel are found here.
        command = ["perf", "script", "-i", path, "--symfs", nothing, "-F", "comm,ip,sym,dso"]
        script = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if script.returncode:
            return "perf script failed", script.stderr.strip()
    kernel = Kernel()
    if kernel.is_hidden():
        return "the kernel hides its symbols", "sysctl kernel.kptr_restrict=1"
    stacks, idle = collections.Counter(), 0
    for command, frames in read_stacks(script.stdout.splitlines(), kernel):
        if is_idle(frames):
            idle += 1
        else:
            stacks[(("", command), *frames)] += 1
    total = sum(stacks.values())
    ours = sum(count for stack, count in stacks.items() if any(module == "rivet" for module, _ in stack))
    if not ours:
        return (
            "no traffic was seen: no sample of rivet",
            f"{total} samples that were not idle, {idle} idle; start a load, and look while it runs",
        )
    show_cpus(before, after)
    show_modules(stacks, total, idle)
    flame.write_folded(stacks, svg + ".folded")
    flame.draw(stacks, svg)
    print()
    print(f"Stacks: {svg}.folded")
    print(f"A picture: {svg}")
    return None


def show_cpus(before, after):
    print(f"  {'CPU':>5}{'busy':>10}{'in softirq':>13}")
    for cpu in sorted(after):
        was = before.get(cpu, (0, 0, 0))
        busy, softirq, ticks = (ticks - then for ticks, then in zip(after[cpu], was))
        if ticks:
            print(f"  {cpu:>5}{busy / ticks * 100:>8.1f} %{softirq / ticks * 100:>11.1f} %")


def show_modules(stacks, total, idle):
    own, inclusive = collections.Counter(), collections.Counter()
    for stack, count in stacks.items():
        own[stack[-1][0] or "unknown"] += count
        for module in {module for module, _ in stack if module}:
            inclusive[module] += count
    print()
    print(f"{total:,} samples that were not idle, {idle:,} idle")
    print(f"  {'module':<24}{'itself':>10}{'with what it calls':>22}")
    others = 0
    for module, count in own.most_common():
        if count / total < 0.005 and module != "rivet":
            others += count
            continue
        print(f"  {module:<24}{count / total * 100:>8.1f} %{inclusive[module] / total * 100:>20.1f} %")
    if "rivet" not in own:
        print(f"  {'rivet':<24}{0:>8.1f} %{inclusive['rivet'] / total * 100:>20.1f} %")
    if others:
        print(f"  {'others':<24}{others / total * 100:>8.1f} %")
    tops = collections.Counter()
    for stack, count in stacks.items():
        tops[stack[-1]] += count
    print()
    print(f"  {'function':<54}{'itself':>10}")
    for (module, name), count in tops.most_common(10):
        print(f"  {f'{module or chr(45)}: {name}'[:53]:<54}{count / total * 100:>8.1f} %")
