# SPDX-License-Identifier: GPL-2.0
"""What profile prints of the maps that its bpftrace programs collect.

A report's write() returns None, or what is wrong and what to do about it.
"""

NO_TRAFFIC = (
    "no traffic was seen",
    "start a load, for example an end of perf (README), and look while it runs",
)


def number(value, digits=0):
    return f"{value:,.{digits}f}"


def us(ns):
    return number(ns / 1000, 1)


def percentile(buckets, share):
    """Of a histogram: the middle of the bucket that this share of all lies below."""
    total = sum(bucket["count"] for bucket in buckets)
    below = 0
    for bucket in buckets:
        below += bucket["count"]
        if below >= total * share:
            return (bucket.get("min", 0) + bucket.get("max", bucket.get("min", 0))) / 2
    return 0


def draw(buckets, what):
    """A line for each power of two, us, with a bar."""
    rows = {}
    for bucket in buckets:
        power = max(0, bucket.get("min", 0)).bit_length()
        rows[power] = rows.get(power, 0) + bucket["count"]
    most = max(rows.values())
    for power in range(min(rows), max(rows) + 1):
        count = rows.get(power, 0)
        low, high = (1 << power >> 1) / 1000, (1 << power) / 1000
        bar = "#" * round(count / most * 40)
        print(f"  {number(low, 1):>12} to {number(high, 1):>12} us  {number(count):>9} {what}  {bar}".rstrip())


class Report:
    def second(self, elapsed, seen):
        """Called each second, if the program says so."""


class Stages(Report):
    """A table of stages, each with its mean and percentiles."""

    def row(self, name, seen, key, total=None):
        stats = seen[f"{key}_sum"]
        buckets = seen[key]
        mean = stats["average"] if "average" in stats else stats["avg"]
        share = "" if total is None else f"{stats['total'] / total * 100:>8.1f} %"
        print(
            f"  {name:<24}{us(mean):>12}{us(percentile(buckets, 0.5)):>12}"
            f"{us(percentile(buckets, 0.99)):>12}{share}"
        )

    def head(self, share=""):
        print(f"  {'stage':<24}{'mean us':>12}{'p50 us':>12}{'p99 us':>12}{share:>10}")


class Latency(Stages):
    STAGES = (
        ("submit to post", "submit_to_post"),
        ("post to doorbell", "post_to_doorbell"),
        ("doorbell to completion", "doorbell_to_completion"),
        ("completion to done", "completion_to_done"),
    )

    def write(self, seen, seconds):
        ops = seen.get("ops", 0)
        if not ops:
            return NO_TRAFFIC
        print(f"{number(ops)} operations in {seconds:.1f} s")
        if "all" not in seen:
            print("None of them began meanwhile: no stages can be told.")
            return None
        followed = sum(bucket["count"] for bucket in seen["all"])
        total = seen["all_sum"]["total"]
        print(f"{number(followed)} operations followed from submit to done")
        print()
        self.head("share")
        for name, key in self.STAGES:
            self.row(name, seen, key, total)
        self.row("all", seen, "all", total)
        if "kick_to_poll" in seen:
            events = sum(bucket["count"] for bucket in seen["event_to_kick"])
            print()
            print(f"Of {number(events)} CQ events, as a part of doorbell to completion:")
            self.head()
            self.row("event to kick", seen, "event_to_kick")
            self.row("kick to end of poll", seen, "kick_to_poll")
        else:
            print()
            print("No CQ event of a lane: whoever waited polled, or the load has no submitters.")
        for name, key in (*self.STAGES, ("all", "all")):
            print()
            print(f"{name}:")
            draw(seen[key], "operations")
        return None


class Completions(Report):
    # What is counted, its name, and what it is a part of.
    LINES = (
        ("posts", "work requests", None),
        ("signalled", "  signalled", "posts"),
        ("doorbells", "doorbells", None),
        ("recv_doorbells", "  of receives", "doorbells"),
        ("completions", "completions", None),
        ("recv_completions", "  of receives", "completions"),
        ("errors", "  with an error", "completions"),
        ("cq_events", "CQ events", None),
        ("kicks", "kicks of softirq", None),
        ("remote_kicks", "  from another CPU", "kicks"),
        ("polls", "polls", None),
        ("empty_polls", "  empty", "polls"),
        ("arms", "arms of a CQ", None),
        ("missed_arms", "  too late", "arms"),
        ("to_busy", "changes to busy", None),
        ("to_coalesce", "changes to coalesce", None),
        ("to_interrupt", "changes to interrupt", None),
    )

    def write(self, seen, seconds):
        ops = seen.get("ops", 0)
        if not ops and not seen.get("completions", 0):
            return NO_TRAFFIC
        print(f"{number(ops)} operations in {seconds:.1f} s; all ends on this machine together")
        print()
        print(f"  {'':<22}{'count':>12}{'per operation':>16}{'share':>10}")
        for key, name, of in self.LINES:
            count = seen.get(key, 0)
            per_op = number(count / ops, 3) if ops else "-"
            whole = seen.get(of, 0) if of else 0
            share = f"{count / whole * 100:.1f} %" if whole else ""
            print(f"  {name:<22}{number(count):>12}{per_op:>16}{share:>10}".rstrip())
        polls = seen.get("polls", 0)
        if polls > seen.get("empty_polls", 0):
            found = seen.get("found", 0) / (polls - seen.get("empty_polls", 0))
            print()
            print(f"{number(found, 2)} completions for each poll that was not empty")
        if not polls:
            print()
            print("No poller was at work: loads without submitters have their own thread look.")
        return None


class Mr(Report):
    COLUMNS = (
        ("ops", "operations/s"),
        ("hits", "hits/s"),
        ("misses", "misses/s"),
        ("registrations", "registrations/s"),
        ("invalidations", "invalidations/s"),
        ("evictions", "evictions/s"),
    )

    def __init__(self):
        self.before = {}

    @staticmethod
    def rate(hits, misses):
        return f"{hits / (hits + misses) * 100:.1f} %" if hits + misses else "-"

    def second(self, elapsed, seen):
        if elapsed == 1:
            heads = "".join(f"{name:>17}" for _, name in self.COLUMNS)
            print(f"  {'time':>6}{'hit rate':>10}{heads}", flush=True)
        new = {key: seen.get(key, 0) - self.before.get(key, 0) for key, _ in self.COLUMNS}
        self.before = seen
        numbers = "".join(f"{number(new[key]):>17}" for key, _ in self.COLUMNS)
        print(f"  {elapsed:>4} s{self.rate(new['hits'], new['misses']):>10}{numbers}", flush=True)

    def write(self, seen, seconds):
        ops = seen.get("ops", 0)
        if not ops and not seen.get("registrations", 0) and not seen.get("hits", 0):
            return NO_TRAFFIC
        hits, misses, registrations = (seen.get(key, 0) for key in ("hits", "misses", "registrations"))
        print()
        print(f"{number(ops)} operations in {seconds:.1f} s")
        print(f"{number(hits)} hits, {number(misses)} misses; hit rate {self.rate(hits, misses)}")
        print(
            f"{number(registrations)} registrations of {number(seen.get('registered', 0) / 1024)} KiB, "
            f"{number(seen.get('invalidations', 0))} invalidations, {number(seen.get('evictions', 0))} evictions"
        )
        if not registrations and not hits:
            print("No memory was registered: what is not copied by the policy is registered before the load.")
        return None


class Locks(Report):
    def write(self, seen, seconds):
        ops = seen.get("ops", 0)
        if "waits" not in seen:
            if not ops:
                return NO_TRAFFIC
            print(f"0 lock waits in {number(ops)} operations and {seconds:.1f} s")
            return None
        stats = seen["waits_sum"]
        count, total = stats["count"], stats["total"]
        print(f"{number(count)} lock waits in {number(ops)} operations and {seconds:.1f} s")
        if ops:
            print(f"{number(count / ops, 3)} waits and {us(total / ops)} us of waiting per operation")
        print(
            f"{us(total / count)} us mean, {us(percentile(seen['waits'], 0.5))} us p50, "
            f"{us(percentile(seen['waits'], 0.99))} us p99; {us(total)} us in all"
        )
        print()
        draw(seen["waits"], "waits")
        print()
        print(f"  {'who waited':<20}{'waits':>10}{'mean us':>12}{'all us':>14}")
        waiters = [
            (" on CPU ".join(who.rsplit(",", 1)), value["count"], value["total"])
            for who, value in sorted(seen["by"].items(), key=lambda item: -item[1]["total"])
        ]
        most, others = waiters[:12], waiters[12:]
        if others:
            most.append(("others", sum(count for _, count, _ in others), sum(total for _, _, total in others)))
        for name, count, total in most:
            print(f"  {name:<20}{number(count):>10}{us(total / count):>12}{us(total):>14}")
        return None


REPORTS = {"latency": Latency, "completions": Completions, "mr": Mr, "locks": Locks}
