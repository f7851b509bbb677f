"""The record of a run: metrics.jsonl line by line, and what is drawn from it, results.csv and TensorBoard's scalars.

    {"step": 50, "epoch": 0.5319149, "split": "train", "loss": 2.1, "accuracy": 0.31, "rate": 0.0005}
    {"step": 94, "epoch": 1.0, "split": "val", "loss": 1.7, "accuracy": 0.41}

No time is in it, so a run that was stopped and resumed ends with the same bytes as one that was not.

Scalars for TensorBoard, where it is installed.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitral.core.errors import VitralError
from vitral.core.jsonl import DISK, Journal, Record, read
from vitral.core.storage import Disk, failure

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


FOLDER = "tensorboard"


class Board:
    """Writes to `tensorboard/` in a folder; does nothing where the package is not installed.

    It is imported at the first scalar, since that takes a second.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """The scalars of a run that has come to this step; those of later steps, if there are any, are hidden."""
        self.folder, self.step = folder / FOLDER, step
        self.installed = find_spec("tensorboard") is not None

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Show values, by name, after so many steps."""
        if not self.installed:
            return
        try:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()
        except OSError as error:
            raise failure(error, self.folder, "its earlier scalars are whole") from error

    def cut(self, step: int) -> None:
        """Show nothing after a step until it comes anew."""
        self.close()
        self.step = step

    def close(self) -> None:
        """Write no more."""
        if "_writer" in vars(self):
            self._writer.close()
            del self._writer

    @cached_property
    def _writer(self) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.folder), purge_step=self.step + 1)


FILE, RESULTS = "metrics.jsonl", "results.csv"
TRAIN = "train"


class Line(NamedTuple):
    """What was measured after so many steps: of the last batch (train), or of all images of another split."""

    step: int
    epoch: float
    split: str
    values: Mapping[str, float]


class Metrics:
    """The record of a run in its folder, to be added to. Each evaluation brings results.csv up to date."""

    def __init__(self, folder: Path, disk: Disk = DISK) -> None:
        self.folder, self.disk = folder, disk
        self._journal = Journal(folder / FILE, disk)
        self._lines = recorded(folder)
        self._board = Board(folder, self._lines[-1].step if self._lines else 0)

    def add(self, line: Line) -> None:
        """Note a line. A process that is killed the next instant has lost nothing of it."""
        record = _record(line)
        self._journal.add(record)
        self._lines.append(_line(record))
        self._board.add(line.step, {f"{name}/{line.split}": value for name, value in line.values.items()})
        if line.split != TRAIN:
            self._tabulate()

    def cut(self, step: int) -> None:
        """Forget all after a step, the one that a run resumes from."""
        self._journal.keep(lambda record: _line(record).step <= step)
        self._lines = [line for line in self._lines if line.step <= step]
        self._board.cut(step)
        self._tabulate()

    def lines(self) -> list[Line]:
        """All lines, from the first."""
        return list(self._lines)

    def flush(self) -> None:
        """Bring the lines to the disk. To be called before a checkpoint is saved, so that they are not the older."""
        self._journal.flush()

    def close(self) -> None:
        """Write no more."""
        self._journal.close()
        self._board.close()

    def _tabulate(self) -> None:
        path = self.folder / RESULTS
        try:
            self.disk.replace(path, results(self._lines).encode())
        except OSError as error:
            raise failure(error, path, f"{FILE} is whole") from error


def recorded(folder: Path) -> list[Line]:
    """The lines of the run in a folder, which may still be going on."""
    path = folder / FILE
    found = []
    for number, record in enumerate(read(path), start=1):
        try:
            found.append(_line(record))
        except (KeyError, TypeError, ValueError):
            message = f"expected step, epoch, split and numbers, got {', '.join(record) or 'nothing'}"
            where = f"{path}:{number}"
            raise VitralError(message, code="run.bad_log", where=where, hint="remove that line") from None
    return found


def results(lines: Iterable[Line]) -> str:
    """A table in CSV with a row for each evaluation: what it found, and the mean of training since the one before.

    What was not measured is left empty.
    """
    rows: list[dict[str, float]] = []
    training: list[Line] = []
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


def _means(training: Sequence[Line]) -> dict[str, float]:
    """The mean of each value of the lines, but of the rate the last."""
    names = dict.fromkeys(name for line in training for name in line.values)
    found = {name: [line.values[name] for line in training if name in line.values] for name in names}
    rate = {"rate": found.pop("rate")[-1]} if "rate" in found else {}
    return {f"{TRAIN}_{name}": _short(sum(values) / len(values)) for name, values in found.items()} | rate


def _columns(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """Epoch and step, then training, then the other splits, and the rate at the end."""
    names = dict.fromkeys(name for row in rows for name in row)
    first, last = ["epoch", "step"], ["rate"] if "rate" in names else []
    inner = [name for name in names if name not in (*first, *last)]
    return [*first, *sorted(inner, key=lambda name: not name.startswith(f"{TRAIN}_")), *last]


def rounded(line: Line) -> Line:
    """The line as the record has it."""
    return _line(_record(line))


def _record(line: Line) -> Record:
    values = {name: _short(value) for name, value in line.values.items()}
    return {"step": line.step, "epoch": _short(line.epoch), "split": line.split, **values}


def _line(record: Record) -> Line:
    values = {name: float(value) for name, value in record.items() if name not in Line._fields}
    return Line(int(record["step"]), float(record["epoch"]), str(record["split"]), values)


def _short(value: float) -> float:
    """In seven digits, which are all that a float32 has."""
    return float(f"{value:.7g}")
