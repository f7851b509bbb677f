"""The metrics of a run: metrics.jsonl and results.csv.

    {"step": 50, "epoch": 0.5319149, "split": "train", "loss": 2.1, "accuracy": 0.31, "rate": 0.0005}
    {"step": 94, "epoch": 1.0, "split": "val", "loss": 1.7, "accuracy": 0.41}

No time is recorded, so a resumed run ends with the same bytes as an uninterrupted one.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from vitral.core.errors import VitralError
from vitral.core.jsonl import JsonlLog, LogDigest, Record, cut_log, read_jsonl, read_lines
from vitral.core.storage import STORAGE, Storage, write_error

FILE, RESULTS = "metrics.jsonl", "results.csv"
TRAIN = "train"


class MetricsLine(NamedTuple):
    """Metrics after `step` steps: of the last batch for `train`, of all images for another split."""

    step: int
    epoch: float
    split: str
    values: Mapping[str, float]


class MetricsLog:
    """Appends to metrics.jsonl of a run, and updates results.csv after each evaluation.

    `on_line` is called with every line that is in the file.
    """

    def __init__(
        self, folder: Path, disk: Storage = STORAGE, on_line: Callable[[MetricsLine], None] = lambda line: None
    ) -> None:
        self.folder, self.disk, self.on_line = folder, disk, on_line
        self._jsonl = JsonlLog(folder / FILE, disk)
        self._lines = read_metrics(folder)
        self._pending: Callable[[], MetricsLine] | None = None

    def add_later(self, line: Callable[[], MetricsLine]) -> None:
        """Append a line before anything else is added, flushed or read: its values may still be on the device."""
        self._add_pending()
        self._pending = line

    def add(self, line: MetricsLine) -> None:
        """Append a line. It is in the file on return."""
        self._add_pending()
        self._append(line)

    def _add_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._append(pending())

    def _append(self, line: MetricsLine) -> None:
        record = _record(line)
        self._jsonl.append(record)
        written = _line(record)
        self._lines.append(written)
        if line.split != TRAIN:
            self._write_results()
        self.on_line(written)

    def truncate(self, step: int) -> None:
        """Remove the lines after a step, from which a run resumes."""
        self._jsonl.filter(lambda record: _line(record).step <= step)
        self._lines = [line for line in self._lines if line.step <= step]
        self._write_results()

    def lines(self) -> list[MetricsLine]:
        """All lines."""
        self._add_pending()
        return list(self._lines)

    def flush(self) -> LogDigest:
        """Sync the file to disk, before a checkpoint, which records the length and hash that are returned."""
        self._add_pending()
        return self._jsonl.flush()

    def close(self) -> None:
        """Close the file."""
        self._jsonl.close()

    def _write_results(self) -> None:
        path = self.folder / RESULTS
        try:
            self.disk.replace_file(path, results_csv(self._lines).encode())
        except OSError as error:
            raise write_error(error, path, f"{FILE} is whole") from error


def cut_metrics(folder: Path, saved: LogDigest) -> None:
    """Remove the lines after a checkpoint; VitralError if those before it are not the ones it was saved with."""
    hint = "restore it from a copy, or start a new run from the weights of this one: vitral train DATA --weights RUN"
    cut_log(folder / FILE, saved, hint)


def has_metrics(folder: Path) -> bool:
    """Whether a run has logged a line."""
    return bool(read_lines(folder / FILE))


def read_metrics(folder: Path) -> list[MetricsLine]:
    """Read the metrics of a run, which may still be in progress."""
    path = folder / FILE
    found = []
    for number, record in enumerate(read_jsonl(path), start=1):
        try:
            found.append(_line(record))
        except (KeyError, TypeError, ValueError):
            message = f"expected step, epoch, split and numbers, got {', '.join(record) or 'nothing'}"
            where = f"{path}:{number}"
            raise VitralError(message, code="run.bad_log", where=where, hint="restore the file from a copy") from None
    return found


def results_csv(lines: Iterable[MetricsLine]) -> str:
    """CSV with a row for each evaluation: its metrics, and the means of the training metrics since the one before.

    Missing values are empty.
    """
    rows: list[dict[str, float]] = []
    training: list[MetricsLine] = []
    for line in lines:
        if line.split == TRAIN:
            training.append(line)
            continue
        row = {"epoch": line.epoch, "step": line.step}
        if rows and rows[-1]["step"] == line.step:  # another split, evaluated after the same step
            row = rows.pop()
        else:
            row |= _means(training)
            training = []
        rows.append(row | {f"{line.split}_{name}": value for name, value in line.values.items()})
    columns = _columns(rows)
    text = StringIO()
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _means(training: Sequence[MetricsLine]) -> dict[str, float]:
    """The mean of each metric of the lines; for the learning rate, the last value."""
    names = dict.fromkeys(name for line in training for name in line.values)
    found = {name: [line.values[name] for line in training if name in line.values] for name in names}
    rate = {"rate": found.pop("rate")[-1]} if "rate" in found else {}
    return {f"{TRAIN}_{name}": _short(sum(values) / len(values)) for name, values in found.items()} | rate


def _columns(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """The column names: epoch and step, training, other splits, learning rate."""
    names = dict.fromkeys(name for row in rows for name in row)
    first, last = ["epoch", "step"], ["rate"] if "rate" in names else []
    inner = [name for name in names if name not in (*first, *last)]
    return [*first, *sorted(inner, key=lambda name: not name.startswith(f"{TRAIN}_")), *last]


def round_values(line: MetricsLine) -> MetricsLine:
    """The line as it is written to the file."""
    return _line(_record(line))


def _record(line: MetricsLine) -> Record:
    values = {name: _short(value) for name, value in line.values.items()}
    return {"step": line.step, "epoch": _short(line.epoch), "split": line.split, **values}


def _line(record: Record) -> MetricsLine:
    values = {name: float(value) for name, value in record.items() if name not in MetricsLine._fields}
    return MetricsLine(int(record["step"]), float(record["epoch"]), str(record["split"]), values)


def _short(value: float) -> float:
    """Rounded to seven digits, the precision of float32."""
    return float(f"{value:.7g}")
