"""The 1,797 handwritten digits of 8 x 8 pixels in scikit-learn, which is asked where they are and never imported."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from vitral.data.sources.arrays import Part, checked
from vitral.data.sources.idx import read_packed
from vitral.errors import DataError

FILE = "digits.csv.gz"
INSIDE = "datasets/data"  # of scikit-learn
HIGHEST = 16  # ink in a pixel
CLASSES = 10


@dataclass(frozen=True)
class Digits:
    """The reader of a folder with the file. It has one part, whatever that is called."""

    folder: str

    @classmethod
    def find(cls, folder: Path) -> "Digits | None":
        """The reader, if the file is in the folder."""
        return cls(str(folder)) if (folder / FILE).is_file() else None

    def load(self, part: str) -> Part:
        path = Path(self.folder, FILE)
        lines = read_packed(path).split()
        try:
            table = np.array([list(map(int, line.split(b","))) for line in lines], np.int64)
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"not a table of numbers: {error}", code="data.bad_archive", where=str(path), remedy="fetch it again"
            ) from None
        if table.shape[1:] != (65,) or table[:, :-1].min() < 0 or table[:, :-1].max() > HIGHEST:
            what = f"expected lines of 64 numbers from 0 to {HIGHEST} and a label"
            raise DataError(what, code="data.bad_archive", where=str(path), remedy="fetch it again")
        pixels = (table[:, :-1] * 255 + HIGHEST // 2) // HIGHEST
        return checked(pixels.astype(np.uint8).reshape(-1, 8, 8), table[:, -1], CLASSES, str(path), str(path))


def scikit_learn() -> list[Path]:
    """Where scikit-learn keeps its data; nowhere if it is not installed."""
    spec = find_spec("sklearn")
    return [Path(place, INSIDE) for place in (spec and spec.submodule_search_locations) or ()]
