# SPDX-License-Identifier: GPL-2.0
"""The pictures of "make bench".

pictures.py BENCH_JSON FOLDER: draws FOLDER/bench-cost.svg and
FOLDER/bench-ladder.svg, each if its cases were measured.
"""

import html
import json
import os
import sys
import textwrap

MTU = 9000
WIDTH = 960
MARGIN = 36

PAPER, EDGE = "#fcfbf8", "#ddd8cc"
INK, QUIET, RULE = "#23262b", "#676b72", "#e9e5db"
FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, sans-serif"

# Parts of the cost, from the left: colour of the part, and of text on it.
PARTS = {
    "registration": ("#b4471f", "#ffffff"),
    "locking": ("#e3a33b", INK),
    "completion": ("#2f6f8a", "#ffffff"),
    "rest": ("#d5d0c4", INK),
}
PART_NAMES = {"completion": "completion handling", "rest": "all else, mostly the soft device"}
OPERATIONS = {"read": "READ 4 KiB", "write": "WRITE 4 KiB"}

STEPS = {
    "naive": "naive",
    "lock": "a lock for each lane",
    "lanes": "a lane for each CPU",
    "completion": "adaptive completion",
    "memory": "memory without waiting",
    "copy": "small payloads copied",
    "batch": "one doorbell for many",
    "signal": "few completions: default",
}
RATE, RATE_GAIN = "#a9c6d2", "#2f6f8a"
COST, COST_SAVED = "#d9a48d", "#f3e3da"


class Picture:
    def __init__(self, title, subtitle):
        self.parts = []
        self.title = title
        self.text(MARGIN, 50, title, size=22, weight=600)
        self.text(MARGIN, 74, subtitle, size=14, fill=QUIET)
        self.bottom = 74

    def text(self, x, y, text, size=13, fill=INK, anchor="start", weight=400, beside=""):
        """BESIDE follows in small type, wherever TEXT ends in the reader's font."""
        if beside:
            beside = (
                f'<tspan dx="9" font-size="13" font-weight="400" fill="{QUIET}">'
                f"{html.escape(beside)}</tspan>"
            )
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}"'
            f' text-anchor="{anchor}" font-weight="{weight}">{html.escape(text)}{beside}</text>'
        )

    def box(self, x, y, width, height, fill, radius=0):
        if width > 0:
            self.parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
                f' fill="{fill}" rx="{radius}"/>'
            )

    def line(self, x1, y1, x2, y2, stroke=RULE, width=1):
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
            f' stroke="{stroke}" stroke-width="{width}"/>'
        )

    def write(self, path, y, notes):
        """Ends the picture at Y with NOTES below."""
        self.line(MARGIN, y, WIDTH - MARGIN, y)
        for note in notes:
            for line in textwrap.wrap(note, 132):
                y += 19
                self.text(MARGIN, y, line, size=12, fill=QUIET)
        height = y + 24
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}"'
                f' viewBox="0 0 {WIDTH} {height:.0f}" role="img" font-family="{FONT}">\n'
                f"<title>{html.escape(self.title)}</title>\n"
                f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="10"'
                f' fill="{PAPER}" stroke="{EDGE}"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
            )
        print(f"A picture: {path}")


def width_of(text, size):
    """About how wide it will be; digits and capitals are wider than the mean."""
    return size * sum(0.62 if c.isdigit() or c.isupper() else 0.3 if c in ",.: " else 0.55 for c in text)


def source(bench, clock, rounds):
    how = "1 vCPU, counting instructions" if clock == "icount" else f"{bench['accel']}, {bench['cpus']} vCPU"
    return (
        f"Linux {bench['kernel']}, QEMU {bench['qemu']}, {bench['cpu_model']}, {how}; "
        f"soft-RoCE over veth, MTU {MTU}; median of {rounds}"
    )


def take(bench, clock, prefix):
    """What follows PREFIX -> the case, where it has figures."""
    return {
        case["case"][len(prefix) :]: case
        for case in bench["cases"]
        if case["case"].startswith(prefix)
        and case["clock"] == clock
        and case["mtu"] == MTU
        and case["rivet"] is not None
    }


# ---- cost --------------------------------------------------------------------


def cost(bench, path):
    cases = take(bench, "icount", "cost-")
    bars = {}
    for name, case in cases.items():
        op, policy, part = name.split("-")
        bars.setdefault((op, policy), {})[part] = case["rivet"]
    if not bars:
        return
    picture = Picture(
        "What one operation costs",
        "Instructions per operation, both ends and the soft devices included; "
        "4 submitters, depth 16, 64 buffers",
    )
    x = MARGIN
    for part, (fill, _) in PARTS.items():
        name = PART_NAMES.get(part, part)
        picture.box(x, 96, 13, 13, fill, 3)
        picture.text(x + 20, 107, name)
        x += 20 + width_of(name, 13) + 26

    left, right = MARGIN + 168, WIDTH - MARGIN - 150
    most = max(sum(max(0, value) for value in parts.values()) for parts in bars.values())
    scale = (right - left) / most
    y, top, op_before = 136, 136, None
    below_zero = []
    base = {}
    for (op, policy), parts in bars.items():
        if op != op_before:
            y += 0 if op_before is None else 16
            picture.text(MARGIN, y + 22, OPERATIONS.get(op, op), size=14, weight=600)
            op_before = op
        picture.text(left - 12, y + 22, policy, size=14, anchor="end")
        x = left
        for part, (fill, ink) in PARTS.items():
            value = parts.get(part, 0)
            if value < 0:
                below_zero.append(f"{op} {policy} {part} {value:,.0f}")
                continue
            wide = value * scale
            picture.box(x, y, wide, 34, fill)
            label = f"{value:,.0f}"
            if width_of(label, 13) + 12 < wide:
                picture.text(x + wide / 2, y + 22, label, fill=ink, anchor="middle")
            x += wide
        total = sum(parts.values())
        base.setdefault(op, total)
        beside = "" if total == base[op] else f"× {total / base[op]:.2f}"
        picture.text(x + 10, y + 22, f"{total:,.0f}", size=14, weight=600, beside=beside)
        y += 44
    picture.line(left, top - 6, left, y - 4, stroke=QUIET)
    notes = ["Each part is the difference of runs with policies that differ in one knob. × is against naive."]
    if below_zero:
        notes.append("Not drawn, as the knob costs more than it saves there: " + ", ".join(below_zero) + ".")
    rounds = next(iter(cases.values()))["rounds"]
    picture.write(path, y + 12, notes + [source(bench, "icount", rounds)])


# ---- the ladder --------------------------------------------------------------


def ladder(bench, path):
    rates, costs = take(bench, "threads", "ladder-"), take(bench, "icount", "ladder-")
    steps = [step for step in STEPS if step in rates and step in costs]
    if not steps:
        return
    picture = Picture(
        "From naive to default, one part at a time",
        "4 KiB READs, 4 submitters, depth 16, 64 buffers; each step keeps those above it",
    )
    panels = (
        (MARGIN + 226, 240, "Operations per second", rates, RATE, RATE_GAIN),
        (MARGIN + 592, 180, "Instructions per operation", costs, COST, COST_SAVED),
    )
    top = 132
    for number, step in enumerate(steps):
        y = top + number * 46
        text = STEPS[step] if number == 0 else "+ " + STEPS[step]
        picture.text(MARGIN, y + 21, text, size=14)
    for left, room, name, cases, fill, change in panels:
        picture.text(left, 114, name, weight=600)
        values = [cases[step]["rivet"] for step in steps]
        scale = room / max(values)
        before = None
        for number, value in enumerate(values):
            y = top + number * 46
            wide = value * scale
            picture.box(left, y, wide, 32, fill)
            end = wide
            if before is not None and cases is rates and value > before:
                picture.box(left + before * scale, y, (value - before) * scale, 32, change)
            elif before is not None and value < before:
                # What the step took away.
                picture.box(left + wide, y, (before - value) * scale, 32, COST_SAVED)
                end = before * scale
            beside = f"× {value / values[0]:.2f}" if number else ""
            label = f"{value:,.0f}"
            picture.text(left + end + 8, y + 21, label, size=14, weight=600, beside=beside)
            before = value
        picture.line(left, top - 6, left, top + len(steps) * 46 - 8, stroke=QUIET)
    y = top + len(steps) * 46 + 6
    notes = [
        "× is against naive. Instructions are counted with 1 vCPU, where one lane serves all "
        "submitters and no lock is waited for.",
        source(bench, "threads", rates[steps[0]]["rounds"]),
    ]
    picture.write(path, y, notes)


def main():
    bench_json, folder = sys.argv[1:]
    with open(bench_json, encoding="utf-8") as file:
        bench = json.load(file)
    cost(bench, os.path.join(folder, "bench-cost.svg"))
    ladder(bench, os.path.join(folder, "bench-ladder.svg"))


main()
