"""What came out, as a table: server by check, on the screen and in docs/COMPATIBILITY.md."""

BEGIN, END = "<!-- begin: written by tests/servers/run --table -->", "<!-- end -->"


def rows(columns):
    """Every check that some server went through, in the order in which they came."""
    checks = {}
    for column in columns:
        for check in column["results"]:
            room, name = check.split("::", 1) if "::" in check else ("", check)
            checks.setdefault((room, name.replace("_", " ")), []).append(column["name"])
    return sorted(checks, key=lambda check: (check[0] != "contract", check[0]))


def cell(column, room, name):
    if column["skipped"]:
        return "skipped"
    for check, passed in column["results"].items():
        if check in (f"{room}::{name}", f"{room}::{name.replace(' ', '_')}", name):
            return "ok" if passed else "FAILED"
    return "-"


def totals(column):
    passed = sum(column["results"].values())
    return "skipped" if column["skipped"] else f"{passed} of {len(column['results'])}"


def summary(columns):
    width = max((len(f"{room}: {name}") for room, name in rows(columns)), default=10)
    lines = ["", "check".ljust(width) + "".join(f"  {column['name'][:12]:>12}" for column in columns)]
    for room, name in rows(columns):
        label = f"{room}: {name}"
        lines.append(label.ljust(width) + "".join(f"  {cell(column, room, name):>12}" for column in columns))
    lines.append("passed".ljust(width) + "".join(f"  {totals(column):>12}" for column in columns))
    lines.append("seconds".ljust(width) + "".join(f"  {column['seconds']:>12}" for column in columns))
    lines += [f"SKIPPED {column['name']}: {column['skipped']}" for column in columns if column["skipped"]]
    return "\n".join(lines)


def write_table(path, columns, date):
    """Replaces what is between the marks and leaves the rest of the page alone."""
    page = path.read_text()
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    titles = [f"{column['name']} {short(column['version'])}".strip() for column in columns]
    lines = [f"Run on {date.isoformat()}.", "", "| check | " + " | ".join(titles) + " |", "|---" * (len(columns) + 1) + "|"]
    for room, name in rows(columns):
        lines.append(f"| {room}: {name} | " + " | ".join(cell(column, room, name) for column in columns) + " |")
    lines.append("| **passed** | " + " | ".join(totals(column) for column in columns) + " |")
    path.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after)


def short(version):
    """A Go pseudo-version says its date in the middle."""
    parts = version.split("-")
    return f"{parts[1][:4]}-{parts[1][4:6]}-{parts[1][6:8]}" if len(parts) == 3 else version
