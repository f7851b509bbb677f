"""Finding: one thing to know about a data set, how bad it is, where it shows and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from vitral.data.samples import Item

Severity = Literal["error", "warning", "note"]  # worst first
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

# This is the list of what the doctor looks for; programs that read the JSON may rely on these names.
FindingKind = Literal[
    "corrupt",
    "channels",
    "contradiction",
    "leak",
    "look-alike leak",
    "missing",
    "unjudged",
    "look-alike labels",
    "duplicates",
    "blank",
    "imbalance",
    "few",
    "aspect",
    "enlarged",
    "large",
    "look-alikes",
    "misnamed",
    "modes",
    "rotated",
    "source",
]


class Example(NamedTuple):
    """Where a finding shows: the images it is about, if any, and what is to be said of them."""

    items: tuple[Item, ...]
    detail: str = ""


@dataclass(frozen=True)
class Finding:
    """One thing to know. `count` is of what the title speaks of, `examples` are all of them."""

    severity: Severity
    kind: FindingKind
    title: str
    count: int
    examples: tuple[Example, ...]
    hint: str


def sort_by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """By severity; within one severity in the order of `Kind`."""
    kinds = get_args(FindingKind)
    return tuple(sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), kinds.index(finding.kind))))


def plural(count: int, noun: str, nouns: str = "") -> str:
    """`1 file`, `2,000 files`."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"
