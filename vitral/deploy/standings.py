"""What a bench found, as text: a table for each model, engines by batches."""

from collections.abc import Iterator, Sequence
from statistics import median

from vitral.deploy.bench import Bench, Cell, Row


def as_text(bench: Bench) -> str:
    """The machine, then a table for each model."""
    peak = median(cell.peak for cell in bench.cells)
    lines = [bench.machine, f"a float32 matmul: {peak / 1e9:.0f} GFLOP/s"]
    for model in dict.fromkeys(cell.model for cell in bench.cells):
        lines += ["", *table([cell for cell in bench.cells if cell.model == model])]
    lines += ["", "images/s in the median round (the middle half of the rounds), share of the matmul peak"]
    return "\n".join(lines)


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """One model: a line for each engine, the fastest first, and why others are left out."""
    rows = {(row.engine, cell.batch): row for cell in cells for row in cell.rows}
    engines = sorted(dict.fromkeys(engine for engine, _ in rows), key=lambda name: -_speed(name, cells))
    width = max(map(len, [*engines, cells[0].model]))
    heads = [f"batch {cell.batch}" for cell in cells]
    told = [[_told(rows.get((engine, cell.batch))) for cell in cells] for engine in engines]
    sides = [max(map(len, column)) for column in zip(heads, *told, strict=True)]
    yield "  ".join([f"{cells[0].model:<{width}}", *map(str.ljust, heads, sides)]).rstrip()
    for engine, texts in zip(engines, told, strict=True):
        yield "  ".join([f"{engine:<{width}}", *map(str.ljust, texts, sides)]).rstrip()
    for reason in dict.fromkeys(reason for cell in cells for reason in cell.left_out):
        yield f"left out: {reason}"


def _speed(engine: str, cells: Sequence[Cell]) -> float:
    """The rate at the last batch that the engine took part in."""
    return [row.rate for cell in cells for row in cell.rows if row.engine == engine][-1]


def _told(row: Row | None) -> str:
    if row is None:
        return "-"
    digits = 1 if row.rate < 100 else 0
    low, middle, high = (f"{rate:.{digits}f}" for rate in (row.low, row.rate, row.high))
    return f"{middle} ({low} to {high}) {100 * row.share:.0f} %"
