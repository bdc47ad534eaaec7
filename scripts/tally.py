# SPDX-License-Identifier: GPL-2.0
"""Counts the results in logs: KTAP and Rust's test harness.

A KTAP result that sums up nested ones is not counted beside them, unless it
alone says that something failed. A plan that is not fulfilled, and a log whose
command failed without a failed result in it, count as one failure each. Beside a
failure stands what its test said: the comments right before its result.
"""

import re
import sys

RESULT = re.compile(r"^((?:[ #]|\t)*)(not )?ok \d+\b(.*)$")
PLAN = re.compile(r"^((?:[ #]|\t)*)1\.\.(\d+)\s*(#.*)?$")
RUST = re.compile(r"^test (.+) \.\.\. (ok|FAILED|ignored)")
EXIT = re.compile(r"^exit (\d+)$")
SAID = re.compile(r"^(?:[ #]|\t)*# ?(.*)$")
# Of what one test said, the last lines.
LINES = 10


class Tally:
    def __init__(self):
        self.passed, self.skipped, self.failures = 0, 0, []

    def read(self, path):
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
        before = len(self.failures)
        # For each depth: planned results, seen results, failures below it.
        planned, seen, below, failed_below = {}, {}, {}, {}
        status = 0
        said = []
        for line in lines:
            if match := RUST.match(line):
                self.count(match[2] == "FAILED", match[2] == "ignored", match[1], [])
            elif match := EXIT.match(line):
                status = int(match[1])
            elif match := PLAN.match(line):
                depth = len(match[1].expandtabs(4))
                planned[depth] = int(match[2])
                seen[depth] = 0
            elif match := RESULT.match(line):
                depth = len(match[1].expandtabs(4))
                deeper = [d for d in list(seen) if d > depth]
                nested = any(below.pop(d, 0) for d in list(below) if d > depth)
                nested_failed = any([failed_below.pop(d, False) for d in list(failed_below) if d > depth])
                for d in deeper:
                    self.plan(path, planned.pop(d, None), seen.pop(d))
                seen[depth] = seen.get(depth, 0) + 1
                below[depth] = 1
                bad = bool(match[2])
                failed_below[depth] = failed_below.get(depth, False) or bad
                if not nested or (bad and not nested_failed):
                    self.count(bad, bool(re.search(r"# *SKIP", match[3], re.I)), match[3], said)
                said = []
            elif match := SAID.match(line):
                said.append(match[1])
            else:
                said = []
        for depth, number in seen.items():
            self.plan(path, planned.get(depth), number)
        if status and len(self.failures) == before:
            self.failures.append(f"{path}: ended with exit status {status}")

    def plan(self, path, planned, seen):
        if planned is not None and planned > seen:
            self.failures.append(f"{path}: {planned - seen} of {planned} results are missing")

    def count(self, bad, skip, name, said):
        if skip:
            self.skipped += 1
        elif bad:
            self.failures.append("\n    | ".join([name.strip(" -"), *said[-LINES:]]))
        else:
            self.passed += 1


def main():
    tally = Tally()
    for path in sys.argv[1:]:
        tally.read(path)
    if tally.failures:
        print("Failed:")
        for name in tally.failures:
            print(f"  {name}")
    print(f"{tally.passed} passed, {len(tally.failures)} failed, {tally.skipped} skipped")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
