# SPDX-License-Identifier: GPL-2.0
"""profile cpu: samples of all CPUs by perf, summed up by module, and a flame graph."""

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
FRAME = re.compile(r"^\s+([0-9a-f]+) (.*) \((.*)\)$")


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


def module_of(dso):
    if "kallsyms" in dso or "vmlinux" in dso:
        return KERNEL
    name = re.sub(r"\.ko(\.\w+)?$", "", os.path.basename(dso)).strip("[]")
    return name.replace("-", "_") if dso.startswith("[") or ".ko" in dso else name or "unknown"


def loaded_modules():
    """Where kernel modules are: (begin, end, name), ascending. Where perf reads the kernel's
    memory it takes their functions for the kernel's."""
    modules = []
    with open("/proc/modules", encoding="ascii") as file:
        for line in file:
            words = line.split()
            begin = int(words[5], 16)
            modules.append((begin, begin + int(words[1]), words[0]))
    return sorted(modules)


def module_at(modules, address):
    at = bisect.bisect_right(modules, address, key=lambda module: module[0]) - 1
    return modules[at][2] if at >= 0 and address < modules[at][1] else None


def read_stacks(lines, modules):
    """perf script's lines -> for each sample, its command and its frames (module, function),
    the outermost first."""
    command, frames = None, []
    for line in lines:
        line = line.rstrip("\n")
        if not line:
            if command is not None:
                yield command, frames[::-1]
            command, frames = None, []
        elif match := FRAME.match(line):
            symbol = re.sub(r"\+0x[0-9a-f]+$", "", match[2])
            module = module_at(modules, int(match[1], 16)) or module_of(match[3])
            frames.append((module, flame.demangle(symbol)))
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
        path = os.path.join(folder, "perf.data")
        print(f"Looking for {seconds} s", flush=True)
        before = cpu_times()
        problem = record(seconds, path)
        after = cpu_times()
        if problem is not None:
            return "perf record failed", problem
        # Functions that were inlined would take perf minutes to name.
        command = ["perf", "script", "--no-inline", "-i", path, "-F", "comm,ip,sym,symoff,dso"]
        script = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if script.returncode:
            return "perf script failed", script.stderr.strip()
    stacks, idle = collections.Counter(), 0
    for command, frames in read_stacks(script.stdout.splitlines(), loaded_modules()):
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
