# SPDX-License-Identifier: GPL-2.0
"""The table of "make bench", and the same as JSON.

report.py PLAN LOGS OUTPUT: PLAN has a line "CLOCK MTU CPUS ROUNDS CASE" for
each case on each machine; what the machine found is in LOGS, in
bench-CLOCK-MTU-CPUS.results (see bench/measure) and .json. OUTPUT is the file
to write. The exit status is 1 if something could not be measured.
"""

import json
import operator
import os
import re
import statistics
import sys

GOAL = re.compile(r"(ratio|rivet) (<=|>=) ([0-9.]+)$")
COMPARE = {"<=": operator.le, ">=": operator.ge}
# Where a goal decides; elsewhere the figure is recorded.
DECISIVE_MTU = 9000


def median(values):
    return round(statistics.median(values), 6)


def spread(values):
    return [round(min(values), 6), round(max(values), 6)]


class Case:
    """A case on one machine."""

    def __init__(self, name, machine):
        self.name = name
        self.clock, self.mtu, self.cpus = machine[0], int(machine[1]), int(machine[2])
        self.pairs = []
        self.metric = self.unit = ""
        self.other_name = None
        self.goal = "record"
        self.skipped = self.failed = None

    def take(self, fields):
        """The fields of a line "pair" behind the name."""
        _, rivet, other, self.metric, self.unit, other_name, goal = fields
        self.pairs.append(tuple(None if figure == "-" else float(figure) for figure in (rivet, other)))
        self.other_name = None if other_name == "-" or other == "-" else other_name
        if goal != "record" and not GOAL.match(goal):
            sys.exit(f"{self.name}: '{goal}' is no goal")
        self.goal = goal if self.mtu == DECISIVE_MTU else "record"

    def as_record(self):
        record = {"case": self.name, "clock": self.clock, "mtu": self.mtu, "cpus": self.cpus}
        record |= {"metric": self.metric, "unit": self.unit}
        if self.skipped or self.failed:
            empty = ("rivet", "other", "other_name", "ratio", "goal", "met")
            record |= dict.fromkeys(empty)
            return record | {"skipped": self.skipped, "failed": self.failed}
        rivets = [rivet for rivet, _ in self.pairs if rivet is not None]
        others = [other for _, other in self.pairs if other is not None]
        ratios = [rivet / other for rivet, other in self.pairs if other and rivet is not None]
        record["rivet"] = median(rivets) if rivets else None
        record["other"] = median(others) if others else None
        record["other_name"] = self.other_name
        record["ratio"] = median(ratios) if ratios else None
        record["goal"] = self.goal
        record["met"] = self.met(record)
        record["rounds"] = len(self.pairs)
        if rivets:
            record["rivet_min"], record["rivet_max"] = spread(rivets)
        if others:
            record["other_min"], record["other_max"] = spread(others)
        if ratios:
            record["ratio_min"], record["ratio_max"] = spread(ratios)
        return record

    def met(self, record):
        goal = GOAL.match(self.goal)
        if not goal or record["rivet"] is None:
            return None
        what, compare, limit = goal.groups()
        figure = record[what]
        return figure is not None and COMPARE[compare](figure, float(limit))


def read(plan, logs):
    """All cases, in the order of the plan; those that one case divides into together."""
    cases, machines = [], {}
    for line in plan:
        *machine, rounds, name = line.split()
        path = os.path.join(logs, "bench-" + "-".join(machine))
        if path not in machines:
            machines[path] = results(path + ".results")
        found = {}
        why = None
        for kind, case, *fields in machines[path]:
            if case == name and kind == "pair":
                whole, *fields = fields
                found.setdefault(whole, Case(whole, machine)).take(fields)
            elif case == name:
                why = kind, fields[0]
        done = min((len(case.pairs) for case in found.values()), default=0)
        if why or done < int(rounds):
            case = Case(name, machine)
            early = f"{done} of {rounds} rounds, then the machine ended: see {path}.out and .console"
            kind, text = why or ("fail", early)
            if kind == "skip":
                case.skipped = text
            else:
                case.failed = text or f"see {path}.out"
            found = {name: case}
        cases += found.values()
    return cases


def results(path):
    try:
        with open(path, encoding="utf-8") as file:
            return [line.rstrip("\n").split("\t") for line in file if line.endswith("\n")]
    except OSError:
        return []


def describe(plan, logs):
    """The machine; what its threads and CPUs are is said for time."""
    seen = []
    for line in plan:
        name = "bench-" + "-".join(line.split()[:3]) + ".json"
        try:
            with open(os.path.join(logs, name), encoding="utf-8") as file:
                seen.append(json.load(file))
        except (OSError, ValueError):
            continue
    if not seen:
        sys.exit("bench: no machine has run")
    return {key: seen[0][key] for key in ("kernel", "qemu", "cpu_model", "accel", "cpus")}


# ---- the table ---------------------------------------------------------------


def number(value):
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3f}"


def verdict(record):
    if record.get("failed"):
        return "FAILED: " + record["failed"]
    if record.get("skipped"):
        return "skipped: " + record["skipped"]
    return {True: "met", False: "NOT MET", None: "recorded"}[record["met"]]


HEAD = ("case", "clock", "MTU", "Rivet", "other", "", "ratio", "unit", "goal", "")


def row(record):
    ratio = record["ratio"]
    goal = record["goal"] or "record"
    return (
        record["case"],
        record["clock"],
        str(record["mtu"]),
        number(record["rivet"]),
        number(record["other"]),
        record["other_name"] or "",
        "-" if ratio is None else f"{ratio:.3f}" if ratio < 0.1 else f"{ratio:.2f}",
        record["unit"],
        "" if goal == "record" else goal,
        verdict(record),
    )


def show(records):
    """Cases together, by name in the order in which they appear; skipped ones below, once each."""
    order = {}
    for record in records:
        order.setdefault(record["case"], len(order))
    measured = [r for r in records if not (r.get("skipped") or r.get("failed"))]
    measured.sort(key=lambda r: (order[r["case"]], r["clock"] == "icount", -r["mtu"]))
    rows = [HEAD] + [row(record) for record in measured]
    widths = [max(len(r[column]) for r in rows) for column in range(len(HEAD))]
    right = {2, 3, 4, 6}
    before = None
    for cells in rows if measured else ():
        shown = list(cells)
        if cells[0] == before:
            shown[0] = ""
        before = cells[0]
        line = "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(shown, widths))
        )
        print(line.rstrip())
    if measured:
        print()
    rest = {}
    for record in records:
        if record.get("skipped") or record.get("failed"):
            where = f"{record['clock']} {record['mtu']}"
            rest.setdefault((record["case"], verdict(record)), []).append(where)
    width = max((len(case) for case, _ in rest), default=0)
    for (case, text), where in rest.items():
        print(f"{case:<{width}}  {text}  ({', '.join(where)})")
    if rest:
        print()


def main():
    plan_path, logs, output = sys.argv[1:]
    with open(plan_path, encoding="utf-8") as file:
        plan = file.readlines()
    machine = describe(plan, logs)
    records = [case.as_record() for case in read(plan, logs)]
    with open(output, "w", encoding="utf-8") as file:
        json.dump({**machine, "cases": records}, file, indent=1)
        file.write("\n")

    print(f"Kernel {machine['kernel']}, QEMU {machine['qemu']}, {machine['cpu_model']}")
    print("Figures are medians of the rounds; a ratio is the median of the rounds' ratios.")
    print('"threads": by time, CPUs side by side; "icount": by instructions, one CPU.')
    print()
    show(records)
    verdicts = [verdict(record).split(":")[0] for record in records]
    counts = [(verdicts.count(word), word.lower()) for word in ("met", "NOT MET", "recorded", "skipped", "FAILED")]
    print(", ".join(f"{n} {word}" for n, word in counts) + f"; as JSON: {output}")
    return 1 if "FAILED" in verdicts else 0


sys.exit(main())
