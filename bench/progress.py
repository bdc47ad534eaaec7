# SPDX-License-Identifier: GPL-2.0
"""How far "make bench" is, and how long it will still take.

progress.py [--terminal] PLAN TIMES: reads what scripts/bench lets the machines
print, and passes on what is not meant for it. TIMES keeps how long a round of
each case takes, for the next time. On a terminal there is one line that
changes, else a line for each case that is done.
"""

import json
import sys
import time

# Seconds, until it is known better.
ROUND = 4.0
BOOT = 8.0


class Progress:
    def __init__(self, plan, times, terminal):
        self.terminal = terminal
        self.times = times
        self.begin = time.monotonic()
        self.heard = self.begin
        self.machine = None
        # (machine, case) -> rounds that are left, in the order of the plan
        self.left = {}
        self.total = 0
        for line in plan:
            clock, mtu, cpus, rounds, case = line.split()
            # Without the round before the first, the warm-up, by instructions.
            self.left[f"{clock} {mtu} {cpus}", case] = int(rounds)
        self.total = len(self.left)
        self.boots = len({machine for machine, _ in self.left})
        self.spent = {}  # (machine, case) -> seconds of each round
        self.skipped = set()

    def round_seconds(self, machine, case):
        """What a round is expected to take: as now, as the last time, or as others do."""
        if case in self.skipped:
            return 0
        spent = self.spent.get((machine, case))
        if spent:
            return sum(spent) / len(spent)
        known = self.times.get(f"{machine} {case}")
        if known is not None:
            return known
        clock = machine.split()[0]
        alike = [s for (m, c), seconds in self.spent.items() for s in seconds if m.split()[0] == clock]
        return sum(alike) / len(alike) if alike else ROUND

    def seconds_left(self):
        rounds = sum(n * self.round_seconds(*key) for key, n in self.left.items() if n)
        return rounds + self.boots * BOOT

    def show(self, case, text):
        left = self.seconds_left()
        about = f"{left / 60:.0f} min" if left > 90 else f"{left:.0f} s"
        done = sum(1 for n in self.left.values() if n == 0)
        clock, mtu, cpus = self.machine.split()
        what = f"  {done}/{self.total}  {clock}, MTU {mtu}, {cpus} vCPU: {text}"
        end = f"about {about} left" if left else "done"
        if self.terminal:
            sys.stdout.write(f"\r\033[K{what}; {end}"[:110])
        elif self.left.get((self.machine, case), 0) == 0:
            print(f"{what}; {end}")
        sys.stdout.flush()

    def line(self, line):
        now = time.monotonic()
        words = line.split()
        if line.startswith("@@ "):
            self.machine = line[3:].strip()
            self.boots -= 1
            self.heard = now
            self.show("", "starting")
        elif line.startswith("@ ") and len(words) == 4 and self.machine:
            _, case, number, rounds = words
            self.spent.setdefault((self.machine, case), []).append(now - self.heard)
            self.heard = now
            self.left[self.machine, case] = int(rounds) - int(number)
            if self.terminal:
                self.show(case, f"{case} round {number} of {rounds}")
        elif line.startswith("@ ") and len(words) == 3 and self.machine:
            case = words[1]
            self.heard = now
            self.left[self.machine, case] = 0
            if (self.machine, case) in self.spent:
                self.show(case, f"{case} {sum(self.spent[self.machine, case]):.0f} s")
            else:
                # As it will be on the next machine.
                self.skipped.add(case)
                self.show(case, f"{case} not measured")
        elif words and words[0] != "#" and not (line.startswith("vm bench-") and line.endswith("exit status 0\n")):
            self.clear()
            print(line, end="", flush=True)

    def clear(self):
        if self.terminal:
            sys.stdout.write("\r\033[K")

    def measured(self):
        times = dict(self.times)
        for (machine, case), seconds in self.spent.items():
            times[f"{machine} {case}"] = round(sum(seconds) / len(seconds), 3)
        return times

    def finish(self):
        self.clear()
        seconds = time.monotonic() - self.begin
        print(f"  measured in {seconds / 60:.0f} min {seconds % 60:.0f} s")


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def main():
    arguments = [a for a in sys.argv[1:] if a != "--terminal"]
    plan, times = arguments
    with open(plan, encoding="utf-8") as file:
        progress = Progress(file, load(times), "--terminal" in sys.argv)
    for line in sys.stdin:
        progress.line(line)
    progress.finish()
    with open(times, "w", encoding="utf-8") as file:
        json.dump(progress.measured(), file, indent=1)
        file.write("\n")


main()
