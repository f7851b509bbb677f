"""The table and the drawing of the grid; cells that were not run stay empty."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from benchmarks.grid import EMPTY, Record, spread
from benchmarks.learning.cells import DATASETS, MINUTES, SEEDS, SYSTEMS, best_rate


def tested(records: Sequence[Record], system: str, dataset: str) -> dict[int, list[Record]]:
    """The tests of each time that was tested, one for each seed, by its minutes."""
    found: dict[int, list[Record]] = {}
    for record in records:
        if (record["system"], record["dataset"], record["split"]) == (system, dataset, "test"):
            found.setdefault(record["minutes"], []).append(record)
    return found


def report(records: Sequence[Record]) -> str:
    """Accuracy on the test images in percent, a row for each system, in Markdown."""
    lines = []
    for dataset in DATASETS:
        lines += ["", f"| {dataset}, test accuracy in % after CPU minutes | " + " | ".join(map(str, MINUTES))]
        lines[-1] += " | parameters | rate |"
        lines.append("|---" * (len(MINUTES) + 3) + "|")
        for system in SYSTEMS:
            found = tested(records, system, dataset)
            scores = [[test["accuracy"] for test in found.get(minutes, [])] for minutes in MINUTES]
            values = [spread(each, len(SEEDS)) for each in scores]
            parameters = f"{next(iter(found.values()))[0]['parameters']:,}" if found else EMPTY
            rate = best_rate(records, system, dataset)
            lines.append(f"| {' | '.join([system, *values, parameters, EMPTY if rate is None else f'x {rate:.2g}'])} |")
    done = sum(record["split"] == "test" for record in records)
    count = len(SYSTEMS) * len(DATASETS) * len(MINUTES) * len(SEEDS)
    return "\n".join([*lines[1:], "", f"{done} of {count} cells are done."])


def plot(records: Sequence[Record], path: Path) -> None:
    """Accuracy against CPU minutes, a panel for each dataset."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, dataset in zip(figure.subplots(1, len(DATASETS)), DATASETS, strict=True):
        for system in SYSTEMS:
            found = tested(records, system, dataset)
            points = [
                (mean(test["cpu_seconds"] for test in tests) / 60, mean(100 * test["accuracy"] for test in tests))
                for _, tests in sorted(found.items())
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True), marker="o", linewidth=2.5 if system == "vitral" else 1.2, label=system
                )
        axes.set(title=dataset, xlabel="CPU minutes", ylabel="test accuracy, %")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
