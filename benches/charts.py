"""Charts as SVG, drawn without any help. Readable on light and on dark ground: they bring their own."""

from html import escape
from math import log10
from statistics import median

import tables

STYLE = """
  svg { font: 13px system-ui, sans-serif }
  .ground { fill: #ffffff } text { fill: #1f2328 } .soft { fill: #59636e } .line { stroke: #d1d9e0 }
  .ours { fill: #0969da } .peer { fill: #8c959f } .raw { fill: #57606a } .spread { stroke: #1f2328 }
  .put { fill: #0969da } .get { fill: #54aeff } .delete { fill: #bf8700 } .list { fill: #8250df }
  .later { fill: none; stroke: #59636e; stroke-dasharray: 3 3 }
  .curve { fill: none; stroke-width: 2.5 } .curve.ours { stroke: #0969da } .curve.peer { stroke: #8c959f }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } text { fill: #f0f6fc } .soft { fill: #9198a1 } .line { stroke: #3d444d }
    .ours { fill: #4493f8 } .peer { fill: #656c76 } .raw { fill: #9198a1 } .spread { stroke: #f0f6fc }
    .put { fill: #4493f8 } .get { fill: #1b5fb0 } .delete { fill: #d29922 } .list { fill: #ab7df8 }
    .later { stroke: #9198a1 } .curve.ours { stroke: #4493f8; fill: none } .curve.peer { stroke: #9198a1; fill: none }
  }
  .curve { fill: none !important }
"""
NAMES = {"raw": "raw object_store", "ours": "leasehold", "new": "leasehold, new key", "naive": "naive", "lockd": "lockd’s pattern",
         "litestream": "litestream’s leaser", "etcd": "etcd"}
TITLES = {"a": "private keys", "fresh": "fresh keys", "b": "1,000 keys", "f": "transactions"}
KINDS = {"put": ["PutObject"], "get": ["GetObject"], "delete": ["DeleteObject", "DeleteMultipleObjects"], "list": ["ListObjectsV2"]}
LABEL, WIDTH, ROW = 150, 760, 24


class Drawing:
    def __init__(self, title):
        self.title, self.parts, self.y = title, [], 0

    def add(self, text):
        self.parts.append(text)

    def text(self, x, y, words, kind="", anchor="start", size=None, weight=None):
        more = (f' class="{kind}"' if kind else "") + (f' font-size="{size}"' if size else "") + (f' font-weight="{weight}"' if weight else "")
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>')

    def bar(self, x, y, width, kind, height=14):
        self.add(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height}"/>')

    def line(self, x1, y1, x2, y2, kind="line"):
        self.add(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def save(self, path, height):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}" '
                f'role="img" aria-label="{escape(self.title)}">\n<style>{STYLE}</style>\n<rect class="ground" width="100%" height="100%"/>\n')
        path.write_text(head + "\n".join(self.parts) + "\n</svg>\n")


def colour(contender):
    return {"ours": "ours", "new": "ours", "raw": "raw"}.get(contender, "peer")


def throughput(path, data):
    """To raw writes, on a scale that doubles: etcd would leave no room for the others."""
    drawing = Drawing("Throughput to raw conditional writes")
    drawing.text(16, 28, "Throughput, raw conditional writes in the same round being 1", size=16, weight=600)
    drawing.text(16, 48, "to the right is faster; the thin line is the least and the greatest of the rounds; each step is twice the one before", "soft", size=12)
    rows = [(workload, contender, data.ratios((workload, contender), (workload, "raw")))
            for workload in TITLES for contender in data.contenders(workload) if contender != "raw"]
    rows = [row for row in rows if row[2]]
    least = min([0.25] + [min(ratios) for _, _, ratios in rows])
    greatest = max([2] + [max(ratios) for _, _, ratios in rows])
    low, high = 1.0, 1.0
    while low > least:
        low /= 2
    while high < greatest:
        high *= 2
    room = WIDTH - LABEL - 130

    def x(ratio):
        return LABEL + room * (log10(max(ratio, low)) - log10(low)) / (log10(high) - log10(low))

    top, y, last = 68, 68, None
    for workload, contender, ratios in rows:
        if workload != last:
            y += 10
            drawing.text(16, y + 14, TITLES[workload], weight=600)
            y, last = y + ROW, workload
        drawing.text(LABEL - 8, y + 12, NAMES[contender], anchor="end")
        left, right = sorted([x(1), x(median(ratios))])
        drawing.bar(left, y, right - left, colour(contender))
        drawing.line(x(min(ratios)), y + 7, x(max(ratios)), y + 7, "spread")
        drawing.text(max(x(1), x(max(ratios))) + 8, y + 12, f"{median(ratios):.2f}", "soft")
        y += ROW
    tick = low
    while tick <= high:
        drawing.parts.insert(0, f'<line class="line" x1="{x(tick):.1f}" y1="{top}" x2="{x(tick):.1f}" y2="{y + 4}"/>')
        drawing.text(x(tick), y + 20, f"{tick:g}" if tick >= 1 else f"1/{1 / tick:g}", "soft", "middle", 12)
        tick *= 2
    drawing.save(path, y + 34)


def requests(path, data):
    drawing = Drawing("Requests for each operation")
    drawing.text(16, 28, "Requests for each operation, counted at the server", size=16, weight=600)
    x = 16
    for kind, word in [("put", "PUT"), ("get", "GET"), ("delete", "DELETE"), ("later", "later, by the sweeper")]:
        drawing.bar(x, 40, 12, kind, 12)
        drawing.text(x + 18, 50, word, "soft", size=12)
        x += 36 + 7.2 * len(word)
    shown = [(workload, contender) for workload in TITLES for contender in data.contenders(workload) if contender != "etcd"]
    scale = (WIDTH - LABEL - 80) / max([6.5] + [data.requests(*row) + (data.later(*row) or 0) for row in shown])
    y, last = 62, None
    for workload, contender in shown:
        if workload != last:
            y += 10
            drawing.text(16, y + 14, TITLES[workload], weight=600)
            y, last = y + ROW, workload
        drawing.text(LABEL - 8, y + 12, NAMES[contender], anchor="end")
        x = LABEL
        for kind, calls in KINDS.items():
            count = data.requests(workload, contender, *calls)
            if count > 0.005:
                drawing.bar(x, y, count * scale, kind)
                x += count * scale
        later = data.later(workload, contender) or 0
        if later > 0.05:
            drawing.bar(x, y + 0.5, later * scale, "later", 13)
            x += later * scale
        each = data.requests(workload, contender)
        drawing.text(x + 8, y + 12, f"{each:.2f}" + (f" + {later:.2f}" if later > 0.05 else ""), "soft")
        y += ROW
    drawing.save(path, y + 12)


def sweeping(path, sweeps):
    """Requests for each swept entry against how many live keys there are beside it, both on logarithmic scales."""
    drawing = Drawing("Requests for each swept entry")
    drawing.text(16, 28, "Requests for each swept entry, by how many live keys there are", size=16, weight=600)
    curves = {}
    for sweeper, count, each in sweeps:
        curves.setdefault(sweeper, {})[count] = each
    live = sorted({count for points in curves.values() for count in points})
    values = [value for points in curves.values() for value in points.values()]
    if not live:
        return
    left, right, top, bottom = 70, WIDTH - 150, 60, 330
    bounds = [log10(live[0]), max(log10(live[-1]), log10(live[0]) + 1)]
    steps = range(min(0, int(log10(min(values)) // 1)), int(-(-log10(max(max(values), 10)) // 1)) + 1)

    def x(count):
        return left + (right - left) * (log10(count) - bounds[0]) / (bounds[1] - bounds[0])

    def y(value):
        return bottom - (bottom - top) * (log10(value) - steps[0]) / (steps[-1] - steps[0])

    for step in steps:
        drawing.line(left, y(10**step), right, y(10**step))
        drawing.text(left - 8, y(10**step) + 4, f"{10**step:,g}", "soft", "end", 12)
    for count in live:
        drawing.text(x(count), bottom + 24, f"{count:,}", "soft", "middle", 12)
    drawing.text((left + right) / 2, bottom + 44, "live keys", "soft", "middle", 12)
    names = {"ours": ("ours", "leasehold"), "full_scan": ("peer", "scan of everything")}
    for sweeper, points in curves.items():
        kind, name = names.get(sweeper, ("peer", sweeper))
        ordered = sorted(points.items())
        drawing.add(f'<polyline class="curve {kind}" points="' + " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in ordered) + '"/>')
        for count, value in ordered:
            drawing.add(f'<circle class="{kind}" cx="{x(count):.1f}" cy="{y(value):.1f}" r="4"/>')
        drawing.text(x(ordered[-1][0]) + 10, y(ordered[-1][1]) + 4, name)
        drawing.text(x(ordered[-1][0]) + 10, y(ordered[-1][1]) - 12, f"{ordered[-1][1]:,.2f}", "soft", size=12)
    drawing.save(path, bottom + 58)


def write(folder, measured, sweeps):
    folder.mkdir(exist_ok=True)
    data = tables.Measured(measured)
    throughput(folder / "bench-throughput.svg", data)
    requests(folder / "bench-requests.svg", data)
    if sweeps:
        sweeping(folder / "bench-sweep.svg", sweeps)
