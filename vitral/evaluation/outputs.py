"""What a model makes of every image of a set, such as its answers.  B images of a batch, N of the set, K classes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitral.core.errors import WeightsError
from vitral.data.loading.loader import Loader
from vitral.data.loading.sampler import Sequential
from vitral.data.transforms.preprocessing import Normalize

ROWS = 4096


class Outputs(NamedTuple):
    """One row for each image, in the order of the set, whichever process saw it."""

    values: Tensor  # (N, ...), float32
    labels: Tensor  # (N,), int64
    places: Tensor  # (N,), int64, those in the items that the loader was given


class Predictions(NamedTuple):
    """One row for each image, in the order of the set, whichever process answered it."""

    logits: Tensor  # (N, K), float32
    labels: Tensor  # (N,), int64
    places: Tensor  # (N,), int64, those in the items that the loader was given

    @property
    def given(self) -> Tensor:
        """The class that each image was said to be of (N,); of equal logits the first."""
        return torch.from_numpy(self.logits.numpy().argmax(axis=1))  # torch promises no order among equals

    @property
    def sure(self) -> Tensor:
        """The probability, by softmax, of the class that each image was said to be of (N,), float64."""
        return torch.cat([chances.amax(dim=1) for chances in self.chances()])

    def chances(self) -> Iterator[Tensor]:
        """The softmax of all logits, float64, some rows at a time: a large set has not room for it twice."""
        return (rows.double().softmax(dim=1) for rows in self.logits.split(ROWS))


def predict(
    model: nn.Module,
    loader: Loader,
    scaling: Normalize,
    device: torch.device,
    gather: Callable[[Tensor], Tensor],
    advance: Callable[[int], None],
) -> Predictions:
    """The model's answers on the CPU; `gather` joins the rows of all processes, `advance` hears of each batch."""
    with eval_mode(model):
        return Predictions(*collect_outputs(model, loader, scaling, device, gather, advance))


@torch.no_grad()  # in inference mode, what a model keeps between calls could never again be trained with
def collect_outputs(
    see: Callable[[Tensor], Tensor],
    loader: Loader,
    scaling: Normalize,
    device: torch.device,
    gather: Callable[[Tensor], Tensor],
    advance: Callable[[int], None],
) -> Outputs:
    """What `see` makes of the scaled images of each batch (B, C, H, W), on the CPU.

    Every process takes part in every batch, be it with no image: a model that is divided among them waits for all.
    """
    assert isinstance(loader.plan.order, Sequential), "any other order leaves images out or shows some twice"
    found: list[Outputs] = []
    for batch in loader.epoch():
        values = see(scaling.apply(batch.images.to(device))).float()  # (B, ...)
        found.append(Outputs(values, batch.labels.to(device), batch.places.to(device)))
        advance(len(batch.labels))
    whole = Outputs(*(gather(torch.cat(rows)).cpu() for rows in zip(*found, strict=True)))
    order = whole.places.argsort()
    assert torch.equal(whole.places[order], torch.arange(len(loader.plan.labels))), "each image is seen once"
    return Outputs(*(rows[order] for rows in whole))


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside the `with` the model is in evaluation mode; after it, each of its parts is in the mode it was in."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def check_finite(rows: Tensor, message: str) -> None:
    """Refuse rows (N, ...) with numbers that are none, called `answers to` or `features of` the images."""
    strange = int((~rows.isfinite()).any(dim=1).sum())
    if strange:
        raise WeightsError(
            f"the {message} {strange:,} of {len(rows):,} images are infinite or not numbers",
            code="weights.not_finite",
            hint="take weights from before training went astray",
        )
