"""Run a model over a dataset and collect its outputs.  B images of a batch, N of the dataset, K classes."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from vitral.core.activation import Activation, probabilities
from vitral.core.errors import WeightsError
from vitral.data.loading.loader import Loader
from vitral.data.loading.sampler import Sequential
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Model
from vitral.models.hooks import eval_mode

ROWS = 4096  # processed at a time


class Outputs(NamedTuple):
    """One row per image, in the order of the dataset, from all processes."""

    values: Tensor  # (N, ...), float32
    labels: Tensor  # (N,), int64
    indices: Tensor  # (N,), int64, into the items of the loader


class Predictions(NamedTuple):
    """The logits of every image, in the order of the dataset."""

    logits: Tensor  # (N, K), float32
    labels: Tensor  # (N,), int64
    indices: Tensor  # (N,), int64, into the items of the loader
    activation: Activation = "softmax"

    @property
    def predicted(self) -> Tensor:
        """The predicted class of each image (N,); of equal logits the first."""
        return torch.from_numpy(self.logits.numpy().argmax(axis=1))  # torch promises no order among equals

    @property
    def confidence(self) -> Tensor:
        """The probability of the predicted class (N,), float64."""
        return torch.cat([chunk.amax(dim=1) for chunk in self.probabilities()])

    def probabilities(self) -> Iterator[Tensor]:
        """The probabilities (rows, K), float64, in chunks: those of a large dataset do not fit in memory twice."""
        return (probabilities(rows.double(), self.activation) for rows in self.logits.split(ROWS))


def predict(
    model: Model,
    loader: Loader,
    scaling: Normalize,
    device: torch.device,
    gather: Callable[[Tensor], Tensor],
    advance: Callable[[int], None],
) -> Predictions:
    """The model's predictions, on the CPU. `gather` joins the rows of all processes; `advance` gets batch sizes."""
    with eval_mode(model):
        return Predictions(*collect_outputs(model, loader, scaling, device, gather, advance), model.activation)


@torch.no_grad()  # in inference mode, what a model keeps between calls could never again be trained with
def collect_outputs(
    function: Callable[[Tensor], Tensor],
    loader: Loader,
    scaling: Normalize,
    device: torch.device,
    gather: Callable[[Tensor], Tensor],
    advance: Callable[[int], None],
) -> Outputs:
    """The outputs of a function of normalized images (B, C, H, W), on the CPU.

    Every process takes part in every batch, even with no images, since a sharded model waits for all of them.
    """
    assert isinstance(loader.plan.order, Sequential), "other orders skip or repeat images"
    batches: list[Outputs] = []
    for batch in loader.epoch():
        values = function(scaling.apply(batch.images.to(device))).float()  # (B, ...)
        batches.append(Outputs(values, batch.labels.to(device), batch.indices.to(device)))
        advance(len(batch.labels))
    joined = Outputs(*(gather(torch.cat(rows)).cpu() for rows in zip(*batches, strict=True)))
    order = joined.indices.argsort()
    assert torch.equal(joined.indices[order], torch.arange(len(loader.plan.labels))), "each image occurs once"
    return Outputs(*(rows[order] for rows in joined))


def check_finite(rows: Tensor, name: str) -> None:
    """Raise if rows (N, ...) of `logits` or `features` have values that are not finite."""
    count = int((~rows.isfinite()).any(dim=1).sum())
    if count:
        message = f"the {name} of {count:,} of {len(rows):,} images are not finite"
        hint = "use a checkpoint from before training diverged"
        raise WeightsError(message, code="weights.not_finite", hint=hint)
