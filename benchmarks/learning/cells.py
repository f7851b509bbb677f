"""The grid: which runs there are, what each of them found, and which rate of each system was the best."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from benchmarks.grid import Record

SYSTEMS = ("vitral", "timm", "vit-pytorch", "transformers", "cct")
DATASETS = ("fashion-mnist", "cifar10")
MINUTES = (2, 5, 10)  # of CPU time, each a run of its own whose schedule ends there
SEARCH_MINUTES = 2
RATES = (1 / 3, 1.0, 3.0)  # times the usual rate of the system
SEEDS = (0, 1, 2)  # of the tests; rates are compared with the first


class Cell(NamedTuple):
    """One run. The rates are compared on a tenth of the training images, the best is tested on the test images."""

    system: str
    dataset: str
    minutes: int
    rate: float
    split: str  # val or test
    seed: int = 0

    @classmethod
    def of(cls, record: Record) -> "Cell":
        return cls(*(record[field] for field in cls._fields))


def searches(system: str, dataset: str) -> list[Cell]:
    return [Cell(system, dataset, SEARCH_MINUTES, rate, "val") for rate in RATES]


def best_rate(records: Iterable[Record], system: str, dataset: str) -> float | None:
    """The rate with the highest accuracy on the held-out images, once all were tried."""
    found = {Cell.of(record): record["accuracy"] for record in records}
    tried = {cell.rate: found[cell] for cell in searches(system, dataset) if cell in found}
    return max(tried, key=lambda rate: tried[rate]) if len(tried) == len(RATES) else None


def open_cells(records: Iterable[Record]) -> Iterator[Cell]:
    """The cells that can be run now and were not, seed by seed: first the search of each system, then its tests."""
    records = list(records)
    done = {Cell.of(record) for record in records}
    for seed, dataset, system in product(SEEDS, DATASETS, SYSTEMS):
        rate = best_rate(records, system, dataset)
        if rate is not None:
            wanted = [Cell(system, dataset, minutes, rate, "test", seed) for minutes in MINUTES]
        else:
            wanted = searches(system, dataset) if seed == SEEDS[0] else []
        yield from (cell for cell in wanted if cell not in done)
