# SPDX-License-Identifier: GPL-2.0
"""The tables of "make run", and the same as JSON.

table.py MTU RUN INSTRUCTIONS OUTPUT [STORAGE]: RUN, INSTRUCTIONS and STORAGE name
runs of the virtual machine (RUN.results, RUN.json) at that MTU, STORAGE one of
bench/measure; OUTPUT is the file to write.
"""

import json
import statistics
import sys

SIZES = {"64": "64 B", "4096": "4 KiB", "65536": "64 KiB"}


def pairs(path):
    """Case name -> list of (rivet, perftest), in the order of the file."""
    cases = {}
    with open(path, encoding="ascii") as lines:
        for line in lines:
            name, rivet, other = line.split()
            cases.setdefault(name, []).append((float(rivet), float(other)))
    return cases


def case(name, rounds):
    metric = name.split("-")[0]
    unit = "us" if metric == "latency" else "op/s"
    return {"name": name, "metric": metric, "unit": unit} | beside("perftest", rounds)


def beside(other, rounds):
    """Medians of Rivet and another, and of the ratio of each pair."""
    return {
        "rivet": statistics.median(r for r, _ in rounds),
        other: statistics.median(p for _, p in rounds),
        "ratio": round(statistics.median(r / p for r, p in rounds), 3),
        "rounds": len(rounds),
        "rivet_min": min(r for r, _ in rounds),
        "rivet_max": max(r for r, _ in rounds),
        f"{other}_min": min(p for _, p in rounds),
        f"{other}_max": max(p for _, p in rounds),
    }


def storage(path):
    """The cases of a run of bench/measure."""
    cases = {}
    with open(path, encoding="ascii") as lines:
        for line in lines:
            kind, *fields = line.rstrip("\n").split("\t")
            if kind != "pair":
                sys.exit(f"{fields[0]}: {fields[1]}")
            _, name, _, rivet, other, metric, unit, other_name, _ = fields
            about, pairs = cases.setdefault(name, ({"metric": metric, "unit": unit, "other": other_name}, []))
            pairs.append((float(rivet), float(other)))
    return [
        {"name": name, "metric": about["metric"], "unit": about["unit"]} | beside(about["other"], pairs)
        for name, (about, pairs) in cases.items()
    ]


def storage_table(rows):
    print("NVMe over RDMA by fio, 4 KiB, on one machine; latency in us, rate in operations per second")
    print(f"  {'':<30}{'Rivet':>12}{'nvme-rdma':>12}{'ratio':>8}")
    for row in rows:
        op, depth = row["name"].split("-")[-2:]
        what = f"random {op}, depth {depth}: {row['metric']}"
        print(f"  {what:<30}{number(row['rivet']):>12}{number(row['nvme-rdma']):>12}{row['ratio']:>8.2f}")
    print()


def middle(windows):
    """The mean of the middle half: as steady as a mean, without the rare event."""
    quarter = len(windows) // 4
    return statistics.mean(sorted(windows)[quarter : len(windows) - quarter])


def number(value):
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def table(title, rows):
    print(title)
    print(f"  {'':<16}{'Rivet':>12}{'perftest':>12}{'ratio':>8}")
    for row in rows:
        _, op, size = row["name"].split("-")
        print(
            f"  {op + ' ' + SIZES[size]:<16}{number(row['rivet']):>12}"
            f"{number(row['perftest']):>12}{row['ratio']:>8.2f}"
        )
    print()


def instructions(path):
    """Case name -> instructions per operation, a list of windows for each run."""
    cases = {}
    with open(path, encoding="ascii") as lines:
        for line in lines:
            name, run, count = line.split()
            cases.setdefault(name, {}).setdefault(run, []).append(float(count))
    return {name: list(runs.values()) for name, runs in cases.items()}


def main():
    mtu, run, counted, output, *rest = sys.argv[1:]
    rows = [case(name, rounds) for name, rounds in pairs(run + ".results").items()]
    with open(run + ".json", encoding="utf-8") as file:
        vm = json.load(file)

    rounds = min(row["rounds"] for row in rows)
    print(f"Kernel {vm['kernel']}, QEMU {vm['qemu']}, {vm['cpu_model']}, {vm['accel']}, {vm['cpus']} CPUs; MTU {mtu}")
    print(f"Medians of {rounds} rounds; a ratio is the median of the rounds' ratios.")
    print()
    table(
        "Latency, us (write and send: half a round trip; smaller is better)",
        [row for row in rows if row["metric"] == "latency"],
    )
    table(
        "Rate at depth 32, operations per second (larger is better)",
        [row for row in rows if row["metric"] == "rate"],
    )

    counts = instructions(counted + ".results")
    print("Instructions per operation at depth 1, by interrupt, both ends and devices included;")
    print("two runs, each the mean of the middle half of its windows")
    for name, windows in counts.items():
        runs = [middle(run) for run in windows]
        op, size = name.split("-")
        apart = (max(runs) - min(runs)) / min(runs) * 100
        shown = " and ".join(f"{count:,.0f}" for count in runs)
        print(f"  {op + ' ' + SIZES[size]:<16}{shown}  ({apart:.2f} % apart)")

    for name, windows in counts.items():
        runs = [middle(run) for run in windows]
        rows.append(
            {
                "name": "instructions-" + name,
                "metric": "instructions",
                "unit": "instructions/op",
                "rivet": runs[0],
                "perftest": None,
                "ratio": None,
                "runs": runs,
                "windows": windows,
            }
        )
    for path in rest:
        print()
        found = storage(path + ".results")
        storage_table(found)
        rows += found
    with open(output, "w", encoding="utf-8") as file:
        machine = ("kernel", "qemu", "cpu_model", "accel", "cpus", "memory_mib")
        report = {key: vm[key] for key in machine} | {"mtu": int(mtu)}
        json.dump({**report, "cases": rows}, file, indent=2)
        file.write("\n")
    print()
    print(f"The same as JSON: {output}")


main()
