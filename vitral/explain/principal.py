"""Principal components: the directions in which rows differ most.  n rows of F numbers, m components."""

from typing import NamedTuple

import torch
from torch import Tensor

NOISE = 1e-12  # of the rows' energy: a variance below it is that of rounding in float32


class Principal(NamedTuple):
    """Components, those of the greatest variance first; as many as were asked for, or as the rows have."""

    directions: Tensor  # (m, F), orthonormal, the number of greatest size in each positive
    shares: Tensor  # (m,), of the variance of all rows
    places: Tensor  # (n, m), where each row lies along each direction, counted from the mean row


@torch.no_grad()
def principal(rows: Tensor, most: int) -> Principal:
    """The first components of some rows (n, F), in float64 on the CPU. The mean row is taken away first."""
    exact = rows.to("cpu", torch.float64)
    centred = exact - exact.mean(dim=0)  # (n, F)
    wide = centred.shape[0] < centred.shape[1]
    products = centred @ centred.mT if wide else centred.mT @ centred  # of the shorter side: both have the same roots
    rising, vectors = torch.linalg.eigh(products)
    variances, vectors = rising.flip(0)[:most], vectors.flip(1)[:, :most]
    real = variances > NOISE * exact.square().sum()
    variances, vectors = variances[real], vectors[:, real]
    directions = (centred.mT @ vectors / variances.sqrt()).mT if wide else vectors.mT  # (m, F)
    directions = directions * signs(directions)
    return Principal(directions, variances / centred.square().sum(), centred @ directions.mT)


def signs(directions: Tensor) -> Tensor:
    """1 or -1 for each direction (m, 1): an axis has two ends, and this chooses the same one every time."""
    greatest = directions.abs().argmax(dim=1, keepdim=True)  # (m, 1)
    return directions.gather(1, greatest).sign()
