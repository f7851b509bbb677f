"""Training images divided into parts of like classes, to choose by.  N images."""

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]


def folds_of(labels: Labels, folds: int, seed: int) -> NDArray[np.int64]:
    """The fold, counted from 0, of each image (N,): all have as many images of a class, or one more."""
    dice = np.random.default_rng(seed)
    classes = [dice.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    found = np.empty(len(labels), dtype=np.int64)
    found[np.concatenate(classes)] = np.arange(len(labels)) % folds  # dealt class after class, like cards
    return found  # (N,)
