"""What models are like inside: a trained one beside the same model with random weights.

B images, C channels, H x W pixels, L layers, h heads, N = R x S patches, T tokens, D width.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitral.core.manifest import own_files
from vitral.data.loading.sampler import SINGLE_PROCESS
from vitral.experiments.measures import Measured, cell_samples
from vitral.explanation.attention_distance import mean_attention_distance
from vitral.explanation.perturbation import measure_faithfulness
from vitral.explanation.relevance import extend_rollout, identity_rollout, read_out, rollout_to_patches
from vitral.explanation.similarity import embedding_filters, position_similarity
from vitral.explanation.trace import has_attention, iterate_layers, require_vit
from vitral.models.base import Model
from vitral.models.hooks import FlopCounter
from vitral.models.resnet import BaseResnet, Resnet
from vitral.models.vit import Vit
from vitral.recipes.recipe import Recipe
from vitral.runs.build import build_eval_loader
from vitral.weights.load import load

if TYPE_CHECKING:
    from vitral.experiments.experiment import Cell

SHOWN, THUMBNAIL = 5, 32  # images in a figure, and their pixels a side
PHOTOS = 128  # test images that are measured, as in appendix D.7
EXPLAINED = 32  # of them with deletion and insertion curves
SHIFTS = 8  # pixels
GIGABYTES = 16  # of memory of a TPUv3 core
BATCHES = (64, 128)  # whose memory is counted: so large that images take more of it than gradients of weights
COPIES = 4  # of the weights in training: weights, gradients, and two moments of Adam


def both_models(cell: "Cell") -> tuple[Model, Model]:
    """The trained model of a run, and one with the random weights of its seed."""
    with own_files():
        trained = load(cell.run.best).model
    torch.manual_seed(cell.seed)
    random: Model = cell.recipe.model.build()
    return trained.cpu().eval(), random.eval()


def some_images(recipe: Recipe, count: int) -> Tensor:
    """Test images of all classes alike, as the model is given them (count, C, H, W)."""
    samples = cell_samples(recipe)
    items = samples.of("test")
    chosen = tuple(items[number * len(items) // count] for number in range(min(count, len(items))))
    loader = build_eval_loader(recipe, replace(samples, items=chosen), "test", SINGLE_PROCESS)
    return torch.cat([recipe.images.normalize.prepare(batch.images) for batch in loader.epoch()])


@torch.no_grad()
def rollout(model: Model, images: Tensor) -> Tensor:
    """Attention from the output through all layers to the patches (B, R, S); appendix D.8."""
    vit = require_vit(model)
    joint = identity_rollout(vit.layout(images).length(), images)  # (1, T, T)
    for step in iterate_layers(vit, images):
        joint = extend_rollout(joint, step.attention())  # (B, T, T)
    return rollout_to_patches(read_out(vit, step.after, step.layout).shares, joint, step.layout)


def attended(cell: "Cell") -> Measured:
    """How far rollout is above random maps in deletion and insertion, of the trained model and of random weights."""
    images, (trained, random) = some_images(cell.recipe, PHOTOS), both_models(cell)
    maps = {"trained": rollout(trained, images), "random": rollout(random, images)}
    with torch.no_grad():
        targets = trained(images).argmax(dim=1).tolist()
    chosen = range(0, len(images), max(1, len(images) // EXPLAINED))
    found = {
        name: float(np.mean([_above_chance(trained, images[[each]], targets[each], values[each]) for each in chosen]))
        for name, values in maps.items()
    }
    values = {"faithfulness": found["trained"], "untrained": found["random"]}
    values["gain"] = found["trained"] - found["random"]
    if cell.seed > 1:
        return Measured(values)
    shown = [number * len(images) // SHOWN for number in range(SHOWN)]
    levels = cell.recipe.images.normalize.restore(images[shown]).mean(dim=1)  # (B, H, W)
    small = F.adaptive_avg_pool2d(levels, THUMBNAIL) if levels.shape[-1] > THUMBNAIL else levels
    arrays = {"photos": small, "trained": maps["trained"][shown], "random": maps["random"][shown]}
    return Measured(values, arrays={name: array.double().numpy() for name, array in arrays.items()})


def _above_chance(model: Model, image: Tensor, target: int, values: Tensor) -> float:
    """The insertion area minus the deletion area of a map, minus the mean of random maps."""
    curves = measure_faithfulness(model, image, target, {"rollout": values.numpy()})
    return float(curves.curves["rollout"].merits()[2] - np.mean([curve.merits()[2] for curve in curves.random]))


def learned(cell: "Cell") -> Measured:
    """Filters, similarity of positions, and attention distance of the trained model and of random weights."""
    images = some_images(cell.recipe, PHOTOS)
    values: dict[str, float] = {}
    arrays: dict[str, NDArray[np.floating[Any]]] = {}
    for name, model in zip(("trained", "random"), both_models(cell), strict=True):
        filters = embedding_filters(model)
        positions = position_similarity(model, require_vit(model).layout(images)).values  # (R, S, R, S)
        distance = mean_attention_distance(model, [images])  # (L, h)
        found = {
            "filters": float(filters.explained_variance[:8].sum()),
            "positions": _nearness(positions),
            "growth": float(distance[-1].mean() - distance[0].mean()),
            "widest": float(distance[0].max()),
        }
        values |= {f"{kind}, {name}": value for kind, value in found.items()}
        arrays |= {f"filters, {name}": filters.components.mean(axis=-1), f"positions, {name}": positions}
        arrays |= {f"distance, {name}": distance.numpy()}
    gained = {kind: values[f"{kind}, trained"] - values[f"{kind}, random"] for kind in ("filters", "positions")}
    own = {} if cell.seed > 1 else {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    return Measured(values | {f"{kind}, gain": value for kind, value in gained.items()}, arrays=own)


def _nearness(positions: NDArray[np.float32]) -> float:
    """The correlation of similarity with nearness, over all pairs of different patches."""
    rows, columns = positions.shape[:2]
    place = np.stack(np.divmod(np.arange(rows * columns), columns), axis=1)  # (N, 2)
    apart = np.linalg.norm(place[:, None] - place, axis=-1)  # (N, N)
    pairs = ~np.eye(rows * columns, dtype=bool)
    return float(np.corrcoef(positions.reshape(rows * columns, -1)[pairs], -apart[pairs])[0, 1])


def shifted(cell: "Cell") -> Measured:
    """How features change when the image is shifted: relative errors, trained and with random weights.

    `equivariance` compares the map of the shifted image with the shifted map, for a shift of `x` pixels of the arm;
    arrays have the error of the pooled features for each shift, and attention distance or receptive field by depth.
    """
    images, by = some_images(cell.recipe, PHOTOS), round(cell.arm.x or SHIFTS)
    values: dict[str, float] = {}
    arrays: dict[str, Tensor] = {}
    for name, model in zip(("trained", "random"), both_models(cell), strict=True):
        values[f"equivariance, {name}"] = equivariance_error(model, images, by)
        arrays[f"shift, {name}"] = torch.tensor(invariance_errors(model, images))
        if has_attention(model):
            arrays[f"depth, {name}"] = mean_attention_distance(model, [images]).mean(dim=1)  # (L,)
        elif isinstance(model.config, Resnet):
            arrays[f"depth, {name}"] = torch.tensor(receptive_fields(model.config)).double()
        if name == "trained":
            with torch.no_grad():
                answers = [model(_window(images, shift, SHIFTS)).argmax(dim=1) for shift in (0, SHIFTS // 2)]
            values["changed"] = (answers[0] != answers[1]).double().mean().item()
    values["learnt"] = values["equivariance, random"] - values["equivariance, trained"]
    return Measured(values, arrays={name: array.double().numpy() for name, array in arrays.items()})


def _window(images: Tensor, shift: int, most: int) -> Tensor:
    """The images moved to the left by so many pixels; the pixels of an edge are repeated."""
    padded = F.pad(images, (0, most, 0, 0), mode="replicate")
    return padded[..., shift : shift + images.shape[-1]]


@torch.no_grad()
def equivariance_error(model: Model, images: Tensor, shift: int) -> float:
    """How far the features of shifted images are from the shifted features, relative to what features differ by."""
    first = model.forward_features(images)
    other = model.forward_features(_window(images, shift, shift))
    cells = shift * first.grid.columns // images.shape[-1]
    assert cells * images.shape[-1] == shift * first.grid.columns, "the shift is a whole number of cells"
    before, after = (each.patches.unflatten(1, each.grid) for each in (first, other))  # (B, R, S, D)
    kept = before[:, :, cells:]
    error = (after[:, :, : kept.shape[2]] - kept).square().sum(dim=-1).mean()
    return float((error / (kept - kept.mean(dim=(0, 1, 2))).square().sum(dim=-1).mean()).sqrt())


@torch.no_grad()
def invariance_errors(model: Model, images: Tensor) -> list[float]:
    """The relative change of the pooled features for each shift from 0 to 8 pixels."""
    pooled = [model.forward_pooled(_window(images, shift, SHIFTS)) for shift in range(SHIFTS + 1)]  # each (B, D)
    scale = (pooled[0] - pooled[0].mean(dim=0)).square().sum(dim=1).mean()
    return [float(((each - pooled[0]).square().sum(dim=1).mean() / scale).sqrt()) for each in pooled]


def receptive_fields(config: BaseResnet) -> list[int]:
    """The pixels a side that an output of each unit depends on, by its convolutions; norms see the whole image."""
    fields, field, jump = [], 7 + 2 * 2, 4  # after the root of 7 x 7 and the pool of 3 x 3, each with stride 2
    for stage, units in enumerate(config.layers):
        for unit in range(units):
            field += 2 * jump
            jump *= 2 if stage and not unit else 1
            fields.append(field)
    return fields


@lru_cache
def largest_batch(config: Vit | Resnet) -> int:
    """The images of a training step that fit in 16 GB, by the counted memory of two batches."""
    peaks = [_step_memory(config, images) for images in BATCHES]
    weights = sum(weight.nbytes for weight in config.build_empty().parameters())
    return int((GIGABYTES * 1e9 - COPIES * weights) * (BATCHES[1] - BATCHES[0]) / (peaks[1] - peaks[0]))


def _step_memory(config: Vit | Resnet, count: int) -> int:
    """The bytes of activations and gradients at the peak of a step, without weights."""
    model = config.build_empty()
    images = torch.empty(count, config.channels, *config.image_size, device="meta")
    with FlopCounter([*model.parameters(), images]) as counter:
        model(images).sum().backward()
    return counter.peak


def mean_over_seeds(arrays: Sequence[NDArray[np.float64]]) -> list[float]:
    """The mean of the same array of several seeds, as numbers."""
    return [float(value) for value in np.mean(arrays, axis=0)]
