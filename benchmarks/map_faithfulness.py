"""`python -m benchmarks.map_faithfulness MODEL [DATA] [--images 200]`: deletion and insertion scores of every map.

Test images of a trained model, as many of each class as can be, are explained by every map, for the class that the
model names. Each map is then judged by deletion and insertion curves, with random maps of the same image beside it.

Where objects stand on a black background, as in Fashion-MNIST, `--object-above 20` also tells how much of a map lies on
the object: its mass there, divided by the object's share of the image. An even map has 1.
"""

import argparse
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

import vitral
from benchmarks.__main__ import machine
from vitral.data.datasets.source import open_data
from vitral.data.samples import Item, Samples
from vitral.explanation.analysis import analyze
from vitral.explanation.explanation import Array, Curve, MapKind
from vitral.explanation.perturbation import RANDOM_MAPS, measure_faithfulness, occlusion
from vitral.weights.load import LoadedModel, load


class Case(NamedTuple):
    """One image in the model's hands."""

    image: Tensor  # (1, C, H, W)
    levels: Tensor  # (1, C, H, W), 0 to 255
    target: int  # the class that the model names
    maps: dict[MapKind, Array]  # each (R, S)


class Areas(NamedTuple):
    """What each image gave: the areas of a map, the mean areas of its random maps, and its mass on the object."""

    deletion: NDArray[np.float64]  # (images,)
    insertion: NDArray[np.float64]
    random_deletion: NDArray[np.float64]
    random_insertion: NDArray[np.float64]
    on_object: NDArray[np.float64]  # times the object's share of the image; not a number without a threshold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run or a bundle")
    parser.add_argument("data", nargs="?", default="fashion-mnist")
    parser.add_argument("--root", default="", help="where a set known by name is, if not in a usual place")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--object-above", type=float, default=math.nan, help="the level above which a pixel is object")
    parser.add_argument("--seed", type=int, default=0, help="of the random maps")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    loaded = load(given.model)
    samples = open_data(given.data, root=given.root)
    items = evenly(samples, given.images)
    began = time.perf_counter()
    found = judged(loaded, samples, items, given.seed, given.object_above)
    bundle = loaded.bundle
    grid = bundle.model.layout(bundle.preprocessing.image_size).grid
    print(machine())
    print(f"{given.model} on {len(items)} test images of {given.data}, {grid} patches, {RANDOM_MAPS} random maps each,")
    print(f"seed {given.seed}, {time.perf_counter() - began:.0f} s, vitral {vitral.__version__}\n")
    print(table(found))


def evenly(samples: Samples, count: int) -> list[Item]:
    """So many test images, as many of each class as can be: the first ones in the order of the set."""
    turns: dict[int, int] = defaultdict(int)
    ranked: list[tuple[int, int, Item]] = []
    for number, item in enumerate(samples.of("test") or samples.of("val")):
        ranked.append((turns[item.label], number, item))
        turns[item.label] += 1
    return [item for _, _, item in sorted(ranked, key=lambda each: each[:2])[:count]]


def judged(
    loaded: LoadedModel, samples: Samples, items: Sequence[Item], seed: int, object_above: float
) -> dict[MapKind, Areas]:
    """The areas of every map of every image, and its mass on pixels above a level."""
    rows: dict[MapKind, list[tuple[float, ...]]] = defaultdict(list)
    for number, case in enumerate(explained(loaded, samples, items)):
        print(f"\r{number + 1} of {len(items)} ", end="", file=sys.stderr, flush=True)
        found = measure_faithfulness(loaded.model, case.image, case.target, case.maps, seed=seed + number)
        chance = areas(found.random).mean(axis=0)  # (2,)
        for kind, curve in found.curves.items():
            mass = mass_on_object(case.maps[kind], case.levels, object_above)
            rows[kind].append((curve.deletion_auc, curve.insertion_auc, *chance, mass))
    print(file=sys.stderr)
    return {kind: Areas(*np.array(lines).T) for kind, lines in rows.items()}


def mass_on_object(heat: Array, levels: Tensor, above: float) -> float:
    """The share of a map (R, S) that lies on pixels of the image (1, C, H, W) above a level, by their share of it.

    The value of a patch is spread evenly over its pixels. What speaks against the class counts as nothing.
    """
    if math.isnan(above):
        return math.nan
    is_object = (levels > above).any(dim=1).double()  # (1, H, W)
    filled = adaptive_avg_pool2d(is_object, heat.shape)[0].numpy()  # (R, S), the object's share of each patch
    weights = np.maximum(heat, 0.0)
    return float((weights * filled).sum() / weights.sum() / filled.mean())


def areas(found: Sequence[Curve]) -> NDArray[np.float64]:
    return np.array([(curve.deletion_auc, curve.insertion_auc) for curve in found])  # (curves, 2)


def explained(loaded: LoadedModel, samples: Samples, items: Sequence[Item]) -> Iterator[Case]:
    """Each image with the maps that a page would show of it."""
    model, bundle = loaded
    for item in items:
        image = bundle.preprocessing.tensor(samples.read(item), item.name)  # (1, C, H, W)
        analysis = analyze(model, image, use_head=bool(bundle.classes))
        target = int(analysis.probabilities.argmax())
        levels = bundle.preprocessing.normalize.restore(image)
        yield Case(image, levels, target, {**analysis.maps, "occlusion": occlusion(model, image, target)})


def table(found: dict[MapKind, Areas]) -> str:
    """A line for each map: its areas, by how much they differ from chance, and on how many images they do so."""
    lines = [
        "| map | deletion, less is better | below random by | on | insertion, more is better | above random by | on |"
        " mass on the object |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, each in found.items():
        below, above = each.random_deletion - each.deletion, each.insertion - each.random_insertion
        gone, back = cells(each.deletion, below), cells(each.insertion, above)
        lines.append(f"| {kind} | {gone} | {back} | {spread(each.on_object)} |")
    for each in list(found.values())[:1]:  # chance is the same for all
        lines.append(f"| random | {spread(each.random_deletion)} | | | {spread(each.random_insertion)} | | | 1 |")
    note = "Areas are means over images +- their deviation; differences are means +- the standard error of the mean;"
    share = "`on` is the share of images on which the map is better than random. Mass: see --help."
    return "\n".join([*lines, "", note, share])


def cells(area: NDArray[np.float64], better: NDArray[np.float64]) -> str:
    error = better.std(ddof=1) / math.sqrt(len(better))
    return f"{spread(area)} | {better.mean():+.3f} +- {error:.3f} | {100 * (better > 0).mean():.0f}%"


def spread(values: NDArray[np.float64]) -> str:
    return f"{values.mean():.3f} +- {values.std(ddof=1):.3f}"


if __name__ == "__main__":
    main()
