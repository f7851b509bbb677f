"""What other libraries made of the scene: the files beside make_augmentations.py and make_tensorflow.py."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.data.transforms.scene import gray_scene, scene

FIXTURES = Path(__file__).parents[2] / "fixtures"
ANSWERS = load_file(FIXTURES / "augmentations.safetensors")
TENSORFLOW = load_file(FIXTURES / "tensorflow.safetensors")


class Answer(NamedTuple):
    """One operation at one amount, the pixels it was given and the pixels that came out."""

    operation: str
    amount: float
    given: NDArray[np.uint8]
    result: NDArray[np.uint8]


def names(source: str, *operations: str) -> list[str]:
    """The answers of one library about some operations, for parametrised tests."""
    return [name for name in ANSWERS if name.startswith(f"{source}/") and name.split("/")[1] in operations]


def answer(name: str) -> Answer:
    _, operation, amount, kind = name.split("/")
    return Answer(operation, float(amount), scene() if kind == "color" else gray_scene(), ANSWERS[name])


def furthest(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    """The greatest difference in levels."""
    assert one.dtype == other.dtype == np.uint8
    assert one.shape == other.shape
    return int(abs(one.astype(np.int64) - other).max())
