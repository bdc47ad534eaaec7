# SPDX-License-Identifier: GPL-2.0
"""A flame graph: stacks as boxes, each as wide as the share of samples that it is in.

A stack is a tuple of frames (module, function), the outermost first.
"""

import html
import re

WIDTH = 1200
MARGIN = 24
ROW = 18
SMALLEST = 0.4  # px: what is narrower is left out

PAPER, EDGE = "#fcfbf8", "#ddd8cc"
INK, QUIET = "#23262b", "#676b72"
FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, sans-serif"

# Whose a frame is: a pattern of the module, name, colour of the box, of text on it.
KINDS = (
    (re.compile(r"^rivet"), "rivet", "#b4471f", "#ffffff"),
    (re.compile(r"^(rdma_rxe|siw|ib_|rdma_|iw_|mlx|irdma|bnxt_re)"), "RDMA core and drivers", "#2f6f8a", "#ffffff"),
    (re.compile(r"^kernel$"), "kernel", "#d5d0c4", INK),
    (re.compile(r"^$"), "task", "#ece7db", INK),
    (re.compile(r""), "other modules and programs", "#e3a33b", INK),
)


def demangle(symbol):
    """The path in a symbol of Rust's v0 mangling, without crate numbers and generics; other
    symbols are left as they are."""
    match = re.match(r"_R(.*)", symbol)
    if not match:
        return symbol
    # Identifiers are their length (after "u" for Unicode), "_" if they begin with a digit
    # or "_", and their text; what else there is says how they nest.
    text, at, names = match[1], 0, []
    while at < len(text):
        number = re.compile(r"\d+").match(text, at)
        if not number:
            # A number of what comes next, or of where it stood before, in base 62.
            skip = re.compile(r"[sB][0-9a-zA-Z]*_").match(text, at)
            at = skip.end() if skip else at + 1
            continue
        length = int(number[0])
        at = number.end()
        if text[at : at + 1] == "_":
            at += 1
        name = text[at : at + length]
        at += length
        if name:
            names.append(name)
    return "::".join(names) or symbol


def kind(module):
    return next(entry for entry in KINDS if entry[0].search(module))


def label(frame):
    """What a frame is called in folded stacks."""
    module, function = frame
    return f"{function} [{module}]" if module else function


def write_folded(stacks, path):
    """Lines "frame;frame;... count", as other tools for flame graphs read them."""
    with open(path, "w", encoding="utf-8") as file:
        for stack, count in sorted(stacks.items()):
            file.write(";".join(label(frame).replace(";", ":") for frame in stack) + f" {count}\n")


class Box:
    def __init__(self):
        self.count = 0
        self.inner = {}


def tree(stacks):
    root = Box()
    for stack, count in stacks.items():
        root.count += count
        box = root
        for frame in stack:
            box = box.inner.setdefault(frame, Box())
            box.count += count
    return root


def place(box, frame, x, level, scale, total, boxes):
    """Puts a box and those that it holds into BOXES; returns the highest level."""
    boxes.append((x, level, box.count * scale, frame, box.count, box.count / total * 100))
    top = level
    for inner, below in sorted(box.inner.items()):
        if below.count * scale >= SMALLEST:
            top = max(top, place(below, inner, x, level + 1, scale, total, boxes))
        x += below.count * scale
    return top


def draw(stacks, path):
    root = tree(stacks)
    boxes = []
    scale = (WIDTH - 2 * MARGIN) / root.count
    top = place(root, ("", "all"), MARGIN, 0, scale, root.count, boxes)
    base = 104 + (top + 1) * ROW
    height = base + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img" font-family="{FONT}" font-size="12">',
        "<title>Where CPUs are</title>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10" fill="{PAPER}" stroke="{EDGE}"/>',
        f'<text x="{MARGIN}" y="40" font-size="22" font-weight="600" fill="{INK}">Where CPUs are</text>',
        f'<text x="{MARGIN}" y="62" font-size="14" fill="{QUIET}">{root.count:,} samples that were not idle; '
        "a box calls those above it, and is as wide as its share of samples</text>",
    ]
    x = MARGIN
    for _, name, fill, _ in KINDS:
        out.append(f'<rect x="{x:.0f}" y="76" width="12" height="12" rx="3" fill="{fill}"/>')
        out.append(f'<text x="{x + 18:.0f}" y="86" fill="{INK}">{name}</text>')
        x += 42 + 6.4 * len(name)
    for x, level, width, frame, count, percent in boxes:
        _, _, fill, ink = kind(frame[0])
        y = base - (level + 1) * ROW
        name = html.escape(label(frame))
        out.append(f"<g><title>{name}: {count:,} samples, {percent:.2f} %</title>")
        out.append(
            f'<rect x="{x:.2f}" y="{y}" width="{max(width - 0.4, 0.2):.2f}" height="{ROW - 1}" rx="1.5" fill="{fill}"/>'
        )
        room = int((width - 8) / 6.6)
        if room >= 3:
            text = frame[1].split("::")[-1] if len(frame[1]) > room else frame[1]
            text = text if len(text) <= room else text[: room - 1] + "…"
            out.append(f'<text x="{x + 4:.2f}" y="{y + 13}" fill="{ink}">{html.escape(text)}</text>')
        out.append("</g>")
    out.append(f'<text x="{MARGIN}" y="{base + 22}" fill="{QUIET}">Point at a box for its name and share.</text>')
    out.append("</svg>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")
