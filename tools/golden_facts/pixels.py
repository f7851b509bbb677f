"""Pixels: what the decoder, the eval transform and the training augmentations make of fixed files."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from tools.golden_facts.images import pictures, write_photos
from tools.golden_facts.names import config_data, method, public, refused

VIEWS: dict[str, tuple[str, ...]] = {
    "plain": ("view:plain",),
    "plain bicubic": ('view:plain.filter="bicubic"',),
    "centre": ("view:centre",),
    "centre bicubic 0.9": ('view:centre.filter="bicubic"', "view:centre.fraction=0.9"),
}
SIZES = {"small": (16, 16), "wide": (24, 40), "large": (96, 96)}
AUGMENTS: dict[str, tuple[str, ...]] = {
    "inception": ("images.view:inception",),
    "inception bicubic": ('images.view:inception.filter="bicubic"', "images.view:inception.area=[0.3, 1.0]"),
    "plain": ("images.view:plain",),
    "centre": ("images.view:centre",),
    "rand_augment": ('images.augment=[{"kind": "rand_augment"}]',),
    "three_augment": ('images.augment=[{"kind": "three_augment"}]',),
    "colour_jitter": ('images.augment=[{"kind": "colour_jitter"}]',),
    "random_erasing": ('images.augment=[{"kind": "random_erasing"}]',),
    "all": (
        'images.augment=[{"kind": "rand_augment"}, {"kind": "colour_jitter"}, {"kind": "random_erasing"}]',
    ),
    "gray": ("model:vit.channels=1", 'images.augment=[{"kind": "rand_augment"}]'),
}  # fmt: skip
ORDERS = ("in_order", "shuffled", "balanced")
STEPS = 9  # of batches of 5 out of 24 images: into the third epoch


def pixels(work: Path) -> dict[str, Any]:
    """Hashes of pixels by what made them."""
    found: dict[str, Any] = {}
    for name, data in pictures().items():
        for view, settings in VIEWS.items():
            for size, (height, width) in SIZES.items():
                for channels in (1, 3):
                    fields = [f"image=[{height}, {width}]", f"decoding.channels={channels}", *settings]
                    key = f"eval {name} {view} {size} {channels} channels"
                    found[key] = seen(fields, data, name)
        found[f"eval {name} as numbers"] = numbers(data, name)
    return found | batches(write_photos(work / "photos"), "photos") | batches(Path("sample"), "sample")


def seen(settings: list[str], data: bytes, name: str) -> str:
    """The hash of what the eval transform makes of a file, or the error."""
    try:
        needs = public("Preprocessing").model_validate_json(json.dumps(config_data("Preprocessing", settings)))
        return digest(method(needs, "Preprocessing.pixels")(data, name))
    except Exception as error:
        return refused(error)


def numbers(data: bytes, name: str) -> str:
    """The hash of the tensor that a model would be given."""
    settings = ["image=[32, 32]", "scaling.mean=[0.2, 0.4, 0.6]", "scaling.deviation=[0.2, 0.3, 0.4]"]
    needs = public("Preprocessing").model_validate_json(json.dumps(config_data("Preprocessing", settings)))
    return digest(method(needs, "Preprocessing.tensor")(data, name).numpy())


def batches(where: Path, name: str) -> dict[str, Any]:
    """Hashes of the first training batches under every augmentation and order, with and without workers."""
    samples = public("open_data")(str(where))
    found: dict[str, Any] = {}
    for augment, settings in AUGMENTS.items():
        for workers in (0, 2):
            found[f"train {name} {augment} workers={workers}"] = shown(samples, list(settings), workers)
    for order in ORDERS:
        found[f"train {name} order {order}"] = shown(samples, [f"data.order:{order}"], 0)
    return found


def shown(samples: Any, settings: list[str], workers: int) -> list[str] | str:
    """The hash of each batch: its pixels, labels and places."""
    image = ["model:vit.image=[16, 16]", "model:vit.stem:patches.patch=[8, 8]"]
    try:
        recipe = public("Recipe").model_validate_json(json.dumps(config_data("Recipe", [*image, *settings])))
        sight = method(recipe, "Recipe.sight")()
        order = recipe_order(recipe)
        loader = method(public("Loader"), "Loader.of")(samples, "train", sight, order, 5, 3, workers)
        return [
            digest(*(np.asarray(part) for part in (batch.images, batch.labels, method(batch, "Batch.places"))))
            for batch in method(loader, "Loader.batches")(0, STEPS)
        ]
    except Exception as error:
        return refused(error)


def recipe_order(recipe: Any) -> Any:
    """The order of the images in a recipe."""
    value = recipe
    for name in ("Recipe.data", "DataConfig.order"):
        value = method(value, name)
    return value


def digest(*arrays: Any) -> str:
    found = hashlib.sha256()
    for array in arrays:
        values = np.ascontiguousarray(array)
        found.update(f"{values.dtype} {values.shape}\n".encode() + values.tobytes())
    return found.hexdigest()
