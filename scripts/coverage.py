# SPDX-License-Identifier: GPL-2.0
"""Which functions and lines of rivet.ko were executed.

QEMU's log of the blocks that it translated (-d in_asm) has the address of each
instruction that was about to run, once. The guest has noted where the module's code
was loaded; the module's DWARF says which line an address is of, and its symbols which
function. Lines are those for which the compiler made code, of all copies of a generic
or inlined function together.
"""

import argparse
import bisect
import collections
import os
import re

ROW = re.compile(r"^0x([0-9a-f]+)\s+(\d+)\s+\d+\s+(\d+)\s+\d+\s+\d+\s+(?:\d+\s+)?(.*)$")
DIRECTORY = re.compile(r"^include_directories\[\s*(\d+)\] = \"(.*)\"")
FILE = re.compile(r"^file_names\[\s*(\d+)\]:")
NAME = re.compile(r"^\s+name: \"(.*)\"")
DIR_INDEX = re.compile(r"^\s+dir_index: (\d+)")
SYMBOL = re.compile(r"^([0-9a-f]{16}) ([0-9a-f]{16}) [tT] (.*)$")
# The padding before functions, static calls, and what is in sections of its own.
NO_FUNCTION = re.compile(r"^__pfx_|^__SC[TK]__|^(?:init|cleanup)_module$")
EXECUTED = re.compile(rb"^0x([0-9a-f]{16}):")


def rows(dwarf, top):
    """The line table: (begin, end, file, line) of each piece of code of the tree."""
    directories, names, number, before = {}, {}, 0, None
    for line in dwarf:
        if line.startswith("debug_line["):
            directories, names, before = {}, {}, None
        elif match := DIRECTORY.match(line):
            directories[int(match[1])] = match[2]
        elif match := FILE.match(line):
            number = int(match[1])
        elif match := NAME.match(line):
            names[number] = (match[1], 0)
        elif match := DIR_INDEX.match(line):
            names[number] = (names[number][0], int(match[1]))
        elif match := ROW.match(line):
            address = int(match[1], 16)
            if before and address > before[0] and before[2]:
                name, directory = names.get(before[1], ("", 0))
                path = os.path.join(directories.get(directory, ""), name)
                if path.startswith(top):
                    yield before[0], address, path[len(top):], before[2]
            ended = "end_sequence" in match[4]
            before = None if ended else (address, int(match[3]), int(match[2]))


def symbols(lines):
    """(begin, end, name) of each function, ascending."""
    found = set()
    for line in lines:
        if (match := SYMBOL.match(line)) and int(match[2], 16) and not NO_FUNCTION.match(match[3]):
            begin = int(match[1], 16)
            found.add((begin, begin + int(match[2], 16), match[3]))
    return sorted(found)


def executed(trace, bases, size):
    """Offsets into the code at which an instruction was translated, ascending."""
    found = set()
    with open(trace, "rb") as file:
        for line in file:
            if match := EXECUTED.match(line):
                address = int(match[1], 16)
                for base in bases:
                    if base <= address < base + size:
                        found.add(address - base)
    return sorted(found)


def any_within(offsets, begin, end):
    at = bisect.bisect_left(offsets, begin)
    return at < len(offsets) and offsets[at] < end


def ranges(lines):
    """1 2 3 7 -> "1-3, 7"."""
    told, first, last = [], None, None
    for line in [*sorted(lines), None]:
        if first is not None and line == last + 1:
            last = line
            continue
        if first is not None:
            told.append(str(first) if first == last else f"{first}-{last}")
        first = last = line
    return ", ".join(told)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", action="append", required=True)
    parser.add_argument("--results", action="append", required=True)
    parser.add_argument("--dwarf", required=True)
    parser.add_argument("--symbols", required=True)
    parser.add_argument("--top", required=True)
    parser.add_argument("--report", required=True)
    args = parser.parse_args()

    with open(args.symbols, encoding="utf-8") as file:
        functions = symbols(file)
    size = max(end for _, end, _ in functions)
    offsets = set()
    for trace, results in zip(args.trace, args.results):
        with open(results, encoding="utf-8", errors="replace") as file:
            bases = {int(line.split()[2], 16) for line in file if line.startswith("module rivet 0x")}
        offsets.update(executed(trace, bases, size))
    offsets = sorted(offsets)

    known, seen = collections.defaultdict(set), collections.defaultdict(set)
    with open(args.dwarf, encoding="utf-8", errors="replace") as file:
        for begin, end, path, line in rows(file, args.top.rstrip("/") + "/"):
            known[path].add(line)
            if any_within(offsets, begin, end):
                seen[path].add(line)
    never = [name for begin, end, name in functions if not any_within(offsets, begin, end)]

    print(f"{'file':40} {'lines':>7} {'executed':>9} {'':>6}")
    all_lines = all_seen = 0
    for path in sorted(known):
        lines, run = len(known[path]), len(seen[path])
        all_lines, all_seen = all_lines + lines, all_seen + run
        print(f"{path:40} {lines:7} {run:9} {100 * run / lines:5.1f}%")
    if not all_lines or not all_seen:
        raise SystemExit("coverage: nothing of the module was seen to run")
    print(f"{'all':40} {all_lines:7} {all_seen:9} {100 * all_seen / all_lines:5.1f}%")
    print(f"functions: {len(functions) - len(never)} of {len(functions)} executed "
          f"({100 * (len(functions) - len(never)) / len(functions):.1f}%)")

    with open(args.report, "w", encoding="utf-8") as file:
        file.write("Lines that were never executed\n\n")
        for path in sorted(known):
            if missing := known[path] - seen[path]:
                file.write(f"{path}: {ranges(missing)}\n")
        file.write("\nFunctions that were never executed\n\n")
        file.writelines(f"{name}\n" for name in sorted(set(never)))


main()
