"""Numbers and names, formatted for readers."""

from collections.abc import Container, Sequence
from itertools import count, zip_longest

from rich.cells import cell_len, set_cell_size

MISSING = "\N{EN DASH}"  # shown instead of a missing number
TIMES = "\N{MULTIPLICATION SIGN}"
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def percent(share: float | None) -> str:
    """`86.3%`; never `0.0%` or `100.0%` of a share that is only close to that. A dash for None."""
    if share is None:
        return MISSING
    if 0 < share < 0.0005:
        return "< 0.1%"
    if 0.9995 <= share < 1:
        return "> 99.9%"
    return f"{100 * share:.1f}%"


def format_points(share: float) -> str:
    """A difference of shares: `2.2 points`."""
    return f"{100 * share:.1f} points"


def format_loss(value: float) -> str:
    """Three significant digits: `0.413`, `12.1`, `0.000210`."""
    return f"{value:#.3g}" if 0 < abs(value) < 1000 else f"{value:,.0f}"


def format_count(count: int) -> str:
    """`5,702`, `21.7 million`, `1.3` times a power of ten."""
    if count < 10**6:
        return f"{count:,}"
    for name, size in (("million", 10**6), ("billion", 10**9)):
        if count < 999.95 * size:
            return f"{count / size:.1f} {name}"
    digits, power = f"{count:.1e}".split("e+")
    return f"{digits} {TIMES} 10{str(int(power)).translate(SUPERSCRIPTS)}"


def align_columns(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """The rows as lines, each column as wide as its widest cell; those with an index in `right` are flush right."""
    widths = [max(map(cell_len, column)) for column in zip_longest(*rows, fillvalue="")]

    def fit(cell: str, width: int, column: int) -> str:
        return f"{'':>{width - cell_len(cell)}}{cell}" if column in right else set_cell_size(cell, width)

    return ["  ".join(map(fit, row, widths, count())).rstrip() for row in rows]


def shorten(name: str, cells: int) -> str:
    """The name, shortened in the middle to so many terminal cells: names often differ at the end."""
    if cell_len(name) <= cells:
        return name
    end = (cells - 1) // 2
    first, last = set_cell_size(name, cells - 1 - end), set_cell_size(name[::-1], end)[::-1]
    return f"{first.rstrip()}…{last.lstrip()}"
