"""The diagnosis as text: one screen for an ordinary data set."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from vitral.data.doctor.diagnosis import IMAGE_SIZE, MAX_SQUEEZE, Diagnosis, summarize_resize
from vitral.data.doctor.finding import Example, Finding, plural
from vitral.data.samples import SPLITS, Samples, Split
from vitral.html.page import printable

COLUMNS = 100
MAX_CLASSES = 12
MAX_EXAMPLES = {"error": 8, "warning": 2, "note": 1}
MAX_NAMES = 3  # of one example
MARGIN = 9  # columns that the severity takes
STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


def format_report(diagnosis: Diagnosis) -> str:
    """The whole report, in lines of at most 100 columns where names allow it."""
    parts = [_headline(diagnosis), _classes(diagnosis.samples), _sizes(diagnosis)]
    if diagnosis.findings:
        parts.append("\n".join(line for finding in diagnosis.findings for line in _finding(finding)))
    return "\n\n".join([*(part for part in parts if part), verdict(diagnosis)])


def print_report(text: str, console: Console) -> None:
    """Print a report, its severities in color where the console has color."""
    for line in text.splitlines():
        shown = Text(line)
        word = line.partition(" ")[0]
        shown.stylize(STYLES.get(word, ""), 0, len(word))
        console.print(shown, soft_wrap=True)


def verdict(diagnosis: Diagnosis) -> str:
    """The closing line: whether to train, or to correct errors first."""
    data = printable(shlex.quote(diagnosis.samples.where))
    errors, warnings = diagnosis.count("error"), diagnosis.count("warning")
    if errors:
        more = f" and {plural(warnings, 'warning')}" if warnings else ""
        return f"{plural(errors, 'error')}{more}: fix the errors, then run  vitral check {data}"
    found = f"{plural(warnings, 'warning')}, no errors" if warnings else "no errors, no warnings"
    return f"{found}: train on it with  vitral train {data}"


def format_example(example: Example) -> str:
    """`a.jpg = b.jpg (looks the same)`: the files of an example and what is said of them."""
    names = [printable(item.name) for item in example.items]
    shown = " = ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
    detail = printable(example.detail)
    return f"{shown} ({detail})" if shown and detail else shown or detail


def _headline(diagnosis: Diagnosis) -> str:
    samples = diagnosis.samples
    splits = ", ".join(f"{len(samples.of(split)):,} {split}" for split in nonempty_splits(samples))
    count = f"{plural(len(samples.items), 'picture')} of {plural(len(samples.classes), 'class', 'classes')}"
    some = f"; {diagnosis.examined:,} examined" if diagnosis.examined < len(samples.items) else ""
    return f"{printable(samples.where)}: {count} ({splits}){some}"


def nonempty_splits(samples: Samples) -> list[Split]:
    """The splits that hold images."""
    held = {item.split for item in samples.items}
    return [split for split in SPLITS if split in held]


def _classes(samples: Samples) -> str:
    splits = nonempty_splits(samples)
    counts = list(zip(*(samples.counts(split) for split in splits), strict=True))
    rows = [
        (printable(name), *(f"{count:,}" for count in row)) for name, row in zip(samples.classes, counts, strict=True)
    ]
    more = []
    if len(rows) > MAX_CLASSES:
        order = sorted(range(len(rows)), key=lambda label: (-sum(counts[label]), label))
        ends = [*order[: MAX_CLASSES // 2], *order[-MAX_CLASSES // 2 :]]
        more = [f"... and {len(rows) - MAX_CLASSES:,} more; these are the largest and the smallest"]
        rows = [rows[label] for label in ends]
    return "\n".join([*_table([("class", *splits), *rows]), *more])


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left and at most half a line wide, the others to the right."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    first = min(widths[0], COLUMNS // 2)
    for name, *numbers in rows:
        cut = name if cell_len(name) <= first else set_cell_size(name, first - 3) + "..."
        cells = [
            set_cell_size(cut, first),
            *(f"{number:>{width}}" for number, width in zip(numbers, widths[1:], strict=True)),
        ]
        yield "  ".join(cells)


def _sizes(diagnosis: Diagnosis) -> str:
    if not diagnosis.sizes:
        return ""
    found = summarize_resize(diagnosis.sizes)
    span = (
        str(found.median)
        if found.smallest == found.largest
        else f"{found.smallest} to {found.largest}, median {found.median}"
    )
    ratio = found.reduction
    scale = f"{1 / ratio:.1f} times larger" if ratio < 1 else f"{ratio:.1f} times smaller"
    lines = [
        f"{'files':<{MARGIN}}{_tally(diagnosis.formats)}; {_tally(diagnosis.modes)}",
        f"{'sizes':<{MARGIN}}{span} (height x width)",
        f"{'resize':<{MARGIN}}to {IMAGE_SIZE}: {scale} at the median; {found.enlarged:,} enlarged, "
        f"{found.squeezed:,} squeezed by more than {MAX_SQUEEZE:g} times",
    ]
    return "\n".join(lines)


def _tally(counted: Counter[str]) -> str:
    """`390 JPEG, 6 PNG`, or `JPEG` where there is nothing else."""
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{count:,} {name}" for name, count in counted.most_common())


def _finding(finding: Finding) -> Iterator[str]:
    indent = " " * MARGIN
    yield from _wrapped(finding.title, f"{finding.severity:<{MARGIN}}", indent)
    if finding.kind != "missing":  # whose title has the names already
        most = MAX_EXAMPLES[finding.severity]
        examples = [format_example(example) for example in finding.examples[:most]]
        left = len(finding.examples) - most
        if left > 0:
            examples[-1] += f" and {left:,} more: --json and --html show all"
        yield from (f"{indent}  {example}" for example in examples)
    if finding.hint:
        yield from _wrapped(finding.hint, f"{indent}> ", f"{indent}  ")


def _wrapped(text: str, first: str, indent: str) -> list[str]:
    """The text in lines that keep to the columns, but for a name that is longer."""
    return wrap(
        printable(text),
        COLUMNS,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
