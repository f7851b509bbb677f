"""The grid: the arms, their seeds, and which cells are open."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from benchmarks.grid import Record

METHODS = ("dino", "mae", "lejepa", "moco_v3", "ibot", "masked_patches")  # with three seeds
WEAK = ("simmim", "beit", "ijepa", "igpt")  # known to need more time than this: one seed
SCRATCH = ("scratch", "best scratch")  # supervised, with the CPU time of pre-training and tuning
PLAIN = ("pixels", "random")  # features that nobody trained
ARMS = (*METHODS, *WEAK, *SCRATCH, *PLAIN)
SEEDS = (0, 1, 2)
SPLITS = ("val", "test")


class Cell(NamedTuple):
    """One arm with one seed. Constants are chosen on held-out training images (val); test images are for the table."""

    arm: str
    seed: int = 0
    split: Literal["val", "test"] = "test"
    minutes: float = 10.0  # CPU minutes of pre-training
    tuning_minutes: float = 3.0  # CPU minutes of fine-tuning; 0 for features alone, by k-NN

    @classmethod
    def of(cls, record: Record) -> "Cell":
        return cls(*(record[field] for field in cls._fields))

    @property
    def name(self) -> str:
        """A name for its folder."""
        return f"{self.arm.replace(' ', '-')}-{self.seed}-{self.split}-{self.minutes:g}-{self.tuning_minutes:g}"


def seeds(arm: str) -> Sequence[int]:
    """The seeds of an arm."""
    return SEEDS if arm in (*METHODS, *SCRATCH) else SEEDS[:1]


def open_cells(records: Sequence[Record], wanted: Cell) -> Iterator[Cell]:
    """The cells with the split and minutes of `wanted` that are not done, in the order in which they are most useful.

    The first seed of the methods that may work and of supervised training comes first.
    """
    done = {Cell.of(record) for record in records}
    arms = [(arm, SEEDS[0]) for arm in (*PLAIN, *METHODS, *SCRATCH)]
    arms += [(arm, seed) for seed in SEEDS[1:] for arm in (*METHODS, *SCRATCH)] + [(arm, SEEDS[0]) for arm in WEAK]
    cells = (wanted._replace(arm=arm, seed=seed) for arm, seed in arms)
    return (cell for cell in cells if cell not in done)
