"""The table and the drawing of the grid; cells that were not run stay empty."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from benchmarks.grid import EMPTY, Record, spread
from benchmarks.selfsupervision.cells import ARMS, PLAIN, SCRATCH, Cell, seeds

BEGIN, END = "<!-- python -m benchmarks.selfsupervision --docs writes from here -->", "<!-- to here -->"
PICTURE = "![Accuracy of each arm by k-NN, linear probe and fine-tuning](selfsupervised.png)"
COLUMNS = {"knn": "k-NN", "linear": "linear probe", "accuracy": "10% of the labels"}
TITLES = {
    "dino": "DINO",
    "mae": "MAE",
    "lejepa": "LeJEPA",
    "moco_v3": "MoCo v3",
    "ibot": "iBOT",
    "masked_patches": "masked patches",
    "simmim": "SimMIM",
    "beit": "BEiT",
    "ijepa": "I-JEPA",
    "igpt": "iGPT",
    "scratch": "from scratch, same encoder and recipe",
    "best scratch": "from scratch, recipe `cifar10`",
    "pixels": "raw pixels",
    "random": "encoder with random weights",
}


def found(records: Sequence[Record], wanted: Cell, arm: str) -> list[Record]:
    """The records of an arm."""
    cells = {wanted._replace(arm=arm, seed=seed) for seed in seeds(arm)}
    return [record for record in records if Cell.of(record) in cells]


def values(records: Sequence[Record], column: str) -> list[float]:
    """The values of a column that were measured."""
    return [record[column] for record in records if record.get(column) is not None]


def report(records: Sequence[Record], wanted: Cell) -> str:
    """Accuracy in percent, a row for each arm, in Markdown."""
    head = [f"accuracy in % after {wanted.minutes:g} CPU minutes", *COLUMNS.values(), "epochs", "CPU seconds"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    done = count = 0
    for arm in ARMS:
        rows = found(records, wanted, arm)
        done, count = done + len(rows), count + len(seeds(arm))
        cells = [spread(values(rows, column), len(seeds(arm))) for column in COLUMNS]
        lines.append(f"| {' | '.join([TITLES[arm], *cells, *costs(rows)])} |")
    return "\n".join([*lines, "", f"{done} of {count} cells are done."])


def with_table(page: str, records: Sequence[Record], wanted: Cell) -> str:
    """The page of the docs with the table and the plot between its two comments."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"the page has no {BEGIN}"
    parts = [BEGIN, report(records, wanted), *([PICTURE] if records else []), END]
    return before + "\n\n".join(parts) + after


def costs(rows: Sequence[Record]) -> tuple[str, str]:
    """Epochs of pre-training, or of training from scratch, and the CPU seconds of all trainings of a cell."""
    trained = [[row[stage] for stage in ("pretraining", "tuning") if stage in row] for row in rows]
    if not any(trained):
        return EMPTY, EMPTY
    epochs = mean(stages[0]["epochs"] for stages in trained)
    seconds = mean(sum(stage["cpu_seconds"] for stage in stages) for stages in trained)
    return f"{epochs:.1f}", f"{seconds:.0f}"


def plot(records: Sequence[Record], path: Path, wanted: Cell) -> None:
    """A panel for each column, a bar for each arm that was run, the deviation over seeds, and scratch as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, (column, title) in zip(figure.subplots(1, len(COLUMNS), sharey=True), COLUMNS.items(), strict=True):
        scores = {arm: [100 * each for each in values(found(records, wanted, arm), column)] for arm in ARMS}
        for place, (arm, each) in enumerate(scores.items()):
            color = "tab:gray" if arm in (*SCRATCH, *PLAIN) else "tab:blue"
            if each:
                error = stdev(each) if len(each) > 1 else 0
                axes.barh(place, mean(each), xerr=error or None, color=color, height=0.7)
                axes.text(mean(each) + error + 0.5, place, f"{mean(each):.1f}", va="center", fontsize=8)
        best = [mean(scores[arm]) for arm in SCRATCH if scores[arm]]
        if best:
            axes.axvline(max(best), color="black", linewidth=0.8, linestyle="--")
        axes.set(title=title, xlabel="test accuracy, %", xlim=(0, 100))
        axes.set_yticks(range(len(ARMS)), [TITLES[arm].replace("`", "") for arm in ARMS], fontsize=8)
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=150)
