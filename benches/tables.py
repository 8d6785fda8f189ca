"""What was measured, as tables: on the screen, and in docs/BENCHMARKS.md between two marks."""

from statistics import median

BEGIN, END = "<!-- begin: written by benches/compare -->", "<!-- end -->"
TITLES = {
    "raw": "raw `object_store`",
    "ours": "**leasehold**",
    "new": "**leasehold**, `new_key()`",
    "naive": "naive: read, then write",
    "lockd": "lockd's request pattern",
    "litestream": "litestream's S3 leaser",
    "etcd": "etcd (another server)",
}
HEADINGS = {
    "a": "(a) Lock cycle, 8 workers, one private key each",
    "fresh": "(a′) Lock cycle, 8 workers, a fresh key each time",
    "b": "(b) Lock cycle, 8 workers, the same 1,000 keys again and again",
    "c": "(c) One key, 64 waiters in one process, empty critical section",
    "d": "(d) One key, 4 processes of 16 waiters",
    "f": "(f) Transactions, 8 workers: one decides, 3 participants read",
}
PER = {"c": "section", "d": "section", "f": "transaction"}
SWEPT = {
    "stale": "of a lease that was released",
    "abandoned": "of a lease that was never released",
    "forgotten": "of a decision, with its marker",
}


def short(version):
    """A Go pseudo-version says its date in the middle."""
    parts = version.split("-")
    return f"{parts[1][:4]}-{parts[1][4:6]}-{parts[1][6:8]}" if len(parts) == 3 else version


class Measured:
    """The runs, and what is asked of them."""

    def __init__(self, measured):
        self.all = measured
        self.by = {}
        for run in measured["runs"]:
            self.by.setdefault((run["workload"], run["contender"]), {})[run["round"]] = run

    def contenders(self, workload):
        return [contender for contender in TITLES if (workload, contender) in self.by]

    def runs(self, workload, contender):
        return list(self.by.get((workload, contender), {}).values())

    def rate(self, workload, contender):
        return median(rate(run) for run in self.runs(workload, contender))

    def field(self, workload, contender, name):
        return median(run[name] for run in self.runs(workload, contender))

    def errors(self, workload, contender):
        return sum(run["errors"] for run in self.runs(workload, contender))

    def ratios(self, one, other):
        """Of two (workload, contender), one ratio for each round that has both."""
        ours, theirs = self.by.get(one, {}), self.by.get(other, {})
        return [rate(ours[number]) / rate(theirs[number]) for number in ours if number in theirs and rate(theirs[number])]

    def requests(self, workload, contender, *kinds):
        """For each operation, all of them or those of some kinds."""
        def each(run):
            return sum(count for name, count in run["requests"].items() if not kinds or name in kinds) / max(1, run["operations"])

        return median(each(run) for run in self.runs(workload, contender))

    def deferred(self, kind="stale"):
        """Requests for each entry that a later sweep deletes."""
        return self.requests("deferred", kind) if ("deferred", kind) in self.by else None

    def later(self, workload, contender):
        """What a sweep will have to do for one operation, or None where nothing is left behind."""
        if workload == "f" and contender == "ours":
            return self.deferred("forgotten")
        if contender in ("ours", "new") and workload == "fresh":
            return self.deferred("stale")
        if contender in ("ours", "new") and self.deferred() is not None:
            # An entry for each key and hour: at this rate nearly nothing.
            keys = {"a": 8, "b": 1000}.get(workload, 1)
            return keys * self.deferred() / (self.rate(workload, contender) * 3600)
        return None


def rate(run):
    return run["operations"] / run["seconds"]


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def spread(ratios):
    if not ratios:
        return "-"
    return f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else f"{ratios[0]:.2f}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def throughput(data, workload):
    per = PER.get(workload, "cycle")
    with_raw = ("raw" in data.contenders(workload))
    header = ["", f"{per}s/s"] + (["of raw"] if with_raw else []) + ["ours to this", "p50 ms", "p99 ms",
                                                                    f"requests per {per}", "with deferred"]
    rows = []
    for contender in data.contenders(workload):
        each, later = data.requests(workload, contender), data.later(workload, contender)
        errors = data.errors(workload, contender)
        name = TITLES[contender] + (f" ({errors} error{'s' * (errors > 1)})" if errors else "")
        row = [name, number(data.rate(workload, contender))]
        if with_raw:
            row.append("1" if contender == "raw" else spread(data.ratios((workload, contender), (workload, "raw"))))
        row.append("1" if contender == "ours" else spread(data.ratios((workload, "ours"), (workload, contender))))
        row += [f"{data.field(workload, contender, 'p50_ms'):.1f}", f"{data.field(workload, contender, 'p99_ms'):.1f}"]
        row.append(f"{each:.2f}")
        row.append(f"{each + later:.2f}" if later is not None else f"{each:.2f}")
        rows.append(row)
    return table(header, rows)


def contended(data, workload):
    rows = []
    for contender in data.contenders(workload):
        row = [TITLES[contender], number(data.rate(workload, contender)),
               f"{data.field(workload, contender, 'p50_ms'):.1f}", f"{data.field(workload, contender, 'p99_ms'):.1f}"]
        puts = data.requests(workload, contender, "PutObject")
        row.append(f"{1 / puts:.3f}" if puts else "-")
        if workload == "d":
            least = [min(run["shares"]) / max(1, max(run["shares"])) for run in data.runs("d", contender)]
            row += [spread(least), spread(data.ratios(("d", contender), ("c", contender)))]
        rows.append(row)
    header = ["", "sections/s", "p50 ms", "p99 ms", "sections per PUT"]
    return table(header + (["least to most of a process", "throughput to (c)"] if workload == "d" else []), rows)


def swept(data):
    rows = []
    for kind, title in SWEPT.items():
        if ("deferred", kind) not in data.by:
            continue
        run = data.runs("deferred", kind)[0]
        made = ", ".join(f"{count:,} {name}" for name, count in sorted(run["requests"].items()))
        rows.append([f"entry {title}", f"{run['operations']:,}", made, f"{data.deferred(kind):.3f}"])
    return table(["", "swept", "requests", "for each"], rows)


def targets(data):
    """Each with what was wanted of it."""
    rows = []

    def row(what, wanted, values, text=None):
        if values:
            middle = median(values)
            rows.append([what, f"at least {wanted}", text or spread(values), "yes" if middle >= wanted else "**no**"])

    def exact(what, wanted, workload, contender):
        if data.runs(workload, contender):
            each = data.requests(workload, contender)
            rows.append([what, f"{wanted}", f"{each:.3f}", "yes" if abs(each - wanted) < 0.02 else "**no**"])

    row("(a) throughput to raw writes", 0.9, data.ratios(("a", "ours"), ("a", "raw")))
    row("(a) throughput to lockd's pattern", 1.8, data.ratios(("a", "ours"), ("a", "lockd")))
    row("(a′) throughput to lockd's pattern", 1.0, data.ratios(("fresh", "ours"), ("fresh", "lockd")))
    exact("(a) requests per cycle", 2, "a", "ours")
    exact("(b) requests per cycle", 2, "b", "ours")
    exact("(a′) requests per cycle", 4, "fresh", "ours")
    exact("(a′) the same with `new_key()`", 3, "fresh", "new")
    row("(c) sections per PUT", 0.95, [1 / puts for run in data.runs("c", "ours")
                                       if (puts := run["requests"].get("PutObject", 0) / max(1, run["operations"]))])
    row("(d) least to most of a process", 0.5, [min(run["shares"]) / max(1, max(run["shares"])) for run in data.runs("d", "ours")])
    row("(d) throughput to (c)", 0.5, data.ratios(("d", "ours"), ("c", "ours")))
    return table(["", "wanted", "measured", "met"], rows)


def sections(measured):
    """Heading and body of each part."""
    data = Measured(measured)
    parts = [("What was aimed for", targets(data))]
    for workload, heading in HEADINGS.items():
        if data.contenders(workload):
            shown = contended if workload in ("c", "d") else throughput
            parts.append((heading, shown(data, workload)))
    if data.deferred() is not None:
        parts.append(("What is left for later", swept(data)))
    return parts


def text(measured):
    return "\n\n".join(f"{heading}\n{body}" for heading, body in sections(measured))


def conditions(measured):
    machine, versions = measured["machine"], measured["versions"]
    return (f"Run on {measured['date']}: {measured['rounds']} rounds of {measured['seconds']:g} s for each contender on each "
            f"workload ((d): {measured['long_rounds']} of {measured['long_seconds']:g} s), on one machine with "
            f"{machine['cores']} cores, {machine['memory_gib']} GiB and {machine['system']}, all servers and clients on it. "
            f"MinIO {versions['minio']}, `object_store` {versions['object_store']}, litestream {versions['litestream']}, "
            f"etcd {versions['etcd']}. Rates and times are medians of the rounds; ratios are the median of the ratios within "
            f"each round, with the least and the greatest.")


def write(path, measured):
    """Replaces what is between the marks and leaves the rest of the page alone."""
    page = path.read_text()
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    parts = [conditions(measured)] + [f"### {heading}\n\n{body}" for heading, body in sections(measured)]
    path.write_text(before + BEGIN + "\n" + "\n\n".join(parts) + "\n" + END + after)
