"""The table of verdicts by group and way, and the lists of what is refused, and of what is wrong and by how much."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.grid import Record
from benchmarks.zoo.judge import FAILURES, VERDICTS

Key = tuple[str, str, str]  # group, name, way
TITLES = {  # of the groups in the table of the docs
    "vit": "timm `vit_*`",
    **{group: f"timm `{group}*`" for group in ("deit", "eva", "aimv2", "beit", "flexivit", "naflexvit", "test_vit")},
    "transformers": "transformers: the families of this page",
    "transformers-more": "transformers: others that are nearly plain",
}


def key_of(record: Record) -> Key:
    return record["group"], record["name"], record["way"]


def latest(records: Iterable[Record]) -> list[Record]:
    """The last record of each cell, in the order of the first."""
    found: dict[Key, Record] = {}
    for record in records:
        found[key_of(record)] = record
    return list(found.values())


def failed(records: Iterable[Record]) -> bool:
    return any(record["verdict"] in FAILURES for record in records)


def table(records: Sequence[Record]) -> list[str]:
    """A row for each group and way; what could not be built is not counted as tried."""
    width = max([len("group"), *(len(record["group"]) for record in records)])
    titles = ("tried", *VERDICTS, "not built", "right %")
    lines = [f"{'group':<{width}}  {'way':<8}" + "".join(f"{title:>10}" for title in titles)]
    for group, way in dict.fromkeys((record["group"], record["way"]) for record in records):
        counts = Counter(r["verdict"] for r in records if (r["group"], r["way"]) == (group, way))
        tried = counts.total() - counts["not built"]
        numbers = [tried, *(counts[verdict] for verdict in VERDICTS), counts["not built"]]
        share = f"{100 * counts['right'] / tried:.1f}" if tried else "-"
        lines.append(f"{group:<{width}}  {way:<8}" + "".join(f"{number:>10}" for number in numbers) + f"{share:>10}")
    return lines


def markdown(records: Sequence[Record], names: Mapping[str, str] = TITLES) -> list[str]:
    """The table of the docs: the verdicts of each group by way; what was not tried is subtracted in words."""
    ways = {"hub": "folder of the hub", "arch": "bare file with `--arch`", "bare": "bare file"}
    lines = [f"| group | models | {' | '.join(ways.values())} |", "|---" * (len(ways) + 2) + "|"]
    for group, title in names.items():
        models = {record["name"] for record in records if record["group"] == group}
        cells = []
        for way in ways:
            counts = Counter(r["verdict"] for r in records if (r["group"], r["way"]) == (group, way))
            tried = counts.total() - counts["not built"]
            found = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
            cells.append(f"{found} of {tried} tried" if 0 < tried < len(models) else found)
        lines.append(f"| {title} | {len(models)} | {' | '.join(cells)} |")
    return lines


def worst_error(record: Record) -> str:
    """Each size with its errors: `224x224 tokens 1e-16 logits 0.3`."""
    sizes = zip(record["sizes"], record.get("errors", ()), strict=False)
    return ", ".join(
        f"{size} " + " ".join(f"{key} {value:.1e}" for key, value in found.items()) for size, found in sizes
    )


def reason_of(record: Record) -> str:
    """A message without the numbers, values and lists that differ between models of one kind."""
    text = record.get("message", "").split("; its tensors:")[0]
    text = re.sub(r"got '[^']*'", "got another", text)
    text = re.sub(r"(?<![\w])[0-9]+([,.x][0-9]+)*(?!\w)", "N", text)
    return f"{record.get('code', '')}: {text[:160]}"


def missing_traits(records: Sequence[Record]) -> list[str]:
    """Parts that some refused model has and no right one, with how many names have them, the most first."""
    right = {trait for record in records if record["verdict"] == "right" for trait in record.get("traits", ())}
    names: dict[str, set[str]] = {}
    for record in records:
        if record["verdict"] in ("refused", "unnamed", "wrong"):
            for trait in set(record.get("traits", ())) - right:
                names.setdefault(trait, set()).add(record["name"])
    ranked = sorted(names.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"  {len(found):3} x {trait}" for trait, found in ranked]


def lists(records: Sequence[Record]) -> list[str]:
    """Wrong ones with their numbers, then every refusal by reason with its names, the most frequent first."""
    lines = []
    for verdict in ("wrong", "crashed", "not built"):
        chosen = [record for record in records if record["verdict"] == verdict]
        lines += [f"\n{verdict}: {len(chosen)}"] if chosen else []
        for record in chosen:
            said = "; ".join([*record.get("assumed", ()), *record.get("notes", ())])
            detail = worst_error(record) if verdict == "wrong" else f"{record['code']}: {record['message'][:200]}"
            lines.append(
                f"  {record['group']} {record['name']} ({record['way']}): {detail}" + (f" [{said}]" if said else "")
            )
    for verdict in ("refused", "unnamed"):
        chosen = [record for record in records if record["verdict"] == verdict]
        reasons: dict[str, list[str]] = {}
        for record in chosen:
            reasons.setdefault(reason_of(record), []).append(f"{record['name']} ({record['way']})")
        lines += [f"\n{verdict}: {len(chosen)}"] if chosen else []
        for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
            lines += [f"  {len(names):3} x {reason}", f"        {', '.join(names)}"]
    return lines


def report(records: Sequence[Record]) -> str:
    missing = missing_traits(records)
    return "\n".join([*table(records), *lists(records), *(["\nin none that is right:", *missing] if missing else [])])
