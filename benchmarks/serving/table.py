"""The table "Measured" of docs/serving.md, from the cells."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.serving.peers import LIBRARIES, ROUNDS, compare
from benchmarks.serving.scenarios import ratio

Cells = Mapping[str, Any]
HEAD = "| load | goal | measured |\n|---|---|---|\n"
MEASURED = re.compile(
    r"(\n## Measured\n(?:[^|#\n][^\n]*\n|\n)*)" + re.escape(HEAD) + r"(?:\|[^\n]*\n)+(?:\n_[^\n]*_\n)?"
)
BUSY = 0.05  # of the processors: with more other work, a figure is marked
NONE = "not measured"


class Row(NamedTuple):
    """A row of the table: the cells that it needs, and what they say."""

    load: str
    goal: str
    cells: tuple[str, ...]
    tell: Callable[[Cells], str]


def rows(cells: Cells) -> list[Row]:
    """The rows, with the seconds that the loads took, or would take."""
    seconds = f"{cells.get('setting', {}).get('seconds', 60):g} s"
    soak = cells.get("soak", {}).get("seconds", 1800) / 60
    return [
        Row("the predictor on files (`offline`)", "", ("offline",), tell_offline),
        Row(f"1 client, {seconds}", "", ("clients-1",), tell_clients("clients-1")),
        Row(f"8 clients, {seconds}", "", ("clients-8",), tell_clients("clients-8")),
        Row(f"32 clients, {seconds}", "at least 90% of the predictor's rate", ("clients-32", "offline"), tell_32),
        Row(f"128 clients, {seconds}", "refusals with `Retry-After`", ("clients-128",), tell_128),
        Row(
            "arrivals at half of the rate of 32 clients", "p99 at most 3 times one request alone", ("half",), tell_half
        ),
        Row(
            "arrivals at 5 times that rate",
            "refusals within 50 ms, p99 of accepted within the deadline of 30 s, memory flat, recovered within 5 s",
            ("overload",),
            tell_overload,
        ),
        Row("8 clients beside 200 slow ones", "as without them", ("slow",), tell_slow),
        Row(f"70% of the rate for {soak:.3g} minutes", "memory and open files flat", ("soak",), tell_soak),
        Row(
            "SIGTERM with 50 requests in flight",
            "all accepted answered, exit 0 within 10 s",
            ("shutdown",),
            tell_shutdown,
        ),
        Row("SIGHUP under 8 clients", "no request lost", ("reload",), tell_reload),
        Row("1 and 2 processes", "", ("workers",), tell_workers),
        Row(
            "LitServe and Ray Serve, 32 clients, same engine",
            "at least their throughput, a lower p99",
            peer_cells(),
            lambda cells: tell_peers(cells, "engine"),
        ),
        Row(
            "LitServe and Ray Serve, 32 clients, torch model",
            "at least 1.2 times their throughput",
            peer_cells(),
            lambda cells: tell_peers(cells, "torch"),
        ),
    ]


def peer_cells() -> tuple[str, ...]:
    """The names of the cells of peers."""
    return tuple(f"peers-{turn}" for turn in range(1, ROUNDS + 1))


def tell_offline(cells: Cells) -> str:
    found = cells["offline"]
    return f"{found['rate']} images/s ({min(found['rates'])} to {max(found['rates'])})"


def tell_clients(name: str) -> Callable[[Cells], str]:
    return lambda cells: tell_load(cells[name])


def tell_load(found: Mapping[str, Any]) -> str:
    """Rate, latencies and what was not answered, of one load."""
    lost = found["statuses"].get("0", 0)
    failed = sum(count for status, count in found["statuses"].items() if status not in {"0", "200", "429", "503"})
    rest = [f"{count:,} {what}" for count, what in ((lost, "lost"), (failed, "failed")) if count]
    return ", ".join([f"{found['rate']} /s, p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms", *rest])


def tell_32(cells: Cells) -> str:
    share = ratio(cells["clients-32"]["rate"], cells["offline"]["rate"])
    return f"{tell_load(cells['clients-32'])}; {share} of the predictor's rate"


def tell_128(cells: Cells) -> str:
    found = cells["clients-128"]
    return f"{tell_load(found)}; {tell_refusals(found)}"


def tell_refusals(found: Mapping[str, Any]) -> str:
    """How many were refused, how soon, and whether they were told when to come back."""
    if not found["refused"]:
        return "none refused"
    named = "all with" if found["retry_after"] else "not all with"
    within = f"{found['refusal_p99_ms_within']} ms in the server, " if "refusal_p99_ms_within" in found else ""
    return (
        f"{found['refused']:,} refused, {named} `Retry-After`, p99 {within}{found['refusal_p99_ms']} ms at the client"
    )


def tell_half(cells: Cells) -> str:
    found = cells["half"]
    parts = [
        f"{name}: p99 {found[spread]['p99_ms']} ms, {found[f'p99_{spread}_by_alone']} times"
        for spread, name in (("even", "evenly spaced"), ("poisson", "at random"))
    ]
    return f"one alone: median {found['alone']['p50_ms']} ms, p99 {found['alone']['p99_ms']} ms; " + "; ".join(parts)


def tell_overload(cells: Cells) -> str:
    found = cells["overload"]
    recovered = "not within 30 s" if found["recovered_s"] is None else f"after {found['recovered_s']} s"
    accepted = f"accepted: {found['rate']} /s, p99 {found['p99_ms']} ms"
    return f"{tell_refusals(found)}; {accepted}; {tell_memory(found)}; recovered {recovered}"


def tell_memory(found: Mapping[str, Any]) -> str:
    """First, highest and last memory of a server."""
    if "megabytes" not in found:
        return "memory not sampled"
    first, most, last = found["megabytes"]
    return f"memory {first} MB at first, {most} at most, {last} at last"


def tell_slow(cells: Cells) -> str:
    found = cells["slow"]
    return f"{found['rate_ratio']} of the rate, p99 {found['p99_ratio']} times: {tell_load(found['beside'])}"


def tell_soak(cells: Cells) -> str:
    found = cells["soak"]
    told = f"{tell_load(found)}; {tell_refusals(found)}; {tell_memory(found)}"
    if "slope_mb_a_minute" not in found:
        return told
    first, last = found["open_files"]
    return f"{told}, {found['slope_mb_a_minute']:+} MB a minute; open files {first} at first, {last} at last"


def tell_shutdown(cells: Cells) -> str:
    found = cells["shutdown"]
    total = sum(found["statuses"].values())
    return (
        f"{found['answered']} of {total} answered, {found['refused']} refused before; "
        f"{found['in_flight']} waited at SIGTERM; "
        f"exit {found['exit_code']} after {found['stopped_s']} s"
    )


def tell_reload(cells: Cells) -> str:
    found = cells["reload"]
    took = ", ".join(f"{each} s" for each in found["reload_s"])
    lost = sum(count for status, count in found["statuses"].items() if status != "200")
    first, *_, last = found["megabytes"]
    late = "" if found["under_load"] else ", the last of them after the load"
    told = f"{found['answered']:,} answered, {lost} lost; reloads took {took}{late}"
    return f"{told}; memory {first} MB before, {last} after"


def tell_workers(cells: Cells) -> str:
    found = {count: cells["workers"][count] for count in ("1", "2")}
    private = {count: " + ".join(map(str, each["private_mb"])) for count, each in found.items()}
    return "; ".join(
        f"{count}: {each['rate']} /s, p99 {each['p99_ms']} ms, private memory {private[count]} MB"
        for count, each in found.items()
    )


def tell_peers(cells: Cells, kind: str) -> str:
    turns = [cells[name] for name in peer_cells()]
    found = compare(turns, kind)
    parts = []
    for library, name in LIBRARIES.items():
        if library not in found:
            parts.append(f"{name}: did not run")
            continue
        each = found[library]
        parts.append(
            f"{name}: {each['rate']:.1f} /s, p99 {each['p99_ms']:.0f} ms; "
            f"ours {each['rate_ratio']} times the throughput, {each['p99_ratio']} times the p99"
        )
    return "; ".join(parts)


def table(cells: Cells) -> str:
    """The table, and a line on where and when it was measured."""
    lines = []
    for row in rows(cells):
        try:
            told = row.tell(cells) if all(name in cells for name in row.cells) else NONE
        except KeyError as error:
            told = f"measured by an earlier version, without {error}: measure it again"
        lines.append(f"| {row.load} |{f' {row.goal}' if row.goal else ''} | {told} |\n")
    note = tell_machine(cells)
    return HEAD + "".join(lines) + (f"\n_{note}_\n" if note else "")


def tell_machine(cells: Cells) -> str:
    """Where the cells were measured, with what, and which of them while other work took the processors."""
    measured = [cell for cell in cells.values() if "machine" in cell]
    if not measured:
        return ""

    def every(of: Callable[[Mapping[str, Any]], str]) -> str:
        return ", ".join(sorted({of(cell) for cell in measured if of(cell)}))

    used = every(lambda cell: ", ".join(f"{name} {version}" for name, version in cell["versions"].items()))
    peers = every(lambda cell: cell.get("peers", ""))
    busy = [cell["cell"] for cell in measured if cell["others"] > BUSY]
    others = (
        f"other work took more than {BUSY:.0%} of the processors in: {', '.join(busy)}"
        if busy
        else f"other work took at most {max(cell['others'] for cell in measured):.1%} of the processors"
    )
    setting = cells["setting"]
    parts = (
        f"{setting['model']}, engine {setting['engine']}",
        every(lambda cell: cell["machine"]),
        used,
        peers,
        f"commit {every(lambda cell: cell['commit'])}",
        every(lambda cell: cell["time"][:10]),
        others,
    )
    return "; ".join(part for part in parts if part) + "."


def write_table(path: Path, cells: Cells) -> None:
    """Put the table in the place of the one in a document."""
    text = path.read_text(encoding="utf-8")
    changed, count = MEASURED.subn(lambda found: found[1] + table(cells), text)
    if count != 1:
        raise SystemExit(f"{path}: expected a section Measured with a table")
    path.write_text(changed, encoding="utf-8")
