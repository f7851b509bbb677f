"""Draw one photo under every augmentation, as in docs/augmentations.md.

Run `python -m tools.draw_augmentations PHOTO OUT.jpg`. The picture in the docs is of Grace Hopper: a photo by the U.S.
Navy, in the public domain, that matplotlib ships as `mpl-data/sample_data/grace_hopper.jpg`. Its partner in mixing is
the last training image of the bundled sample. Running it again draws the same picture.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps

from vitral.core.config import Size
from vitral.data.datasets.source import open_data
from vitral.data.decoding.decode import decode
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.augment import OPERATIONS, Augment, ColorJitter, RandomErasing, ThreeAugment
from vitral.data.transforms.crop import RandomResizedCrop
from vitral.data.transforms.mixup import MixedBatch, cut_box, cutmix, mixup
from vitral.data.transforms.resize import crop_and_resize
from vitral.recipes.augreg import AUGREG

SIDE, TILE, GAP = 224, 124, 4
COLUMNS = 8
MARGIN, HEADING = 124, 24
SEED = 54  # from here on eight seeds in a row show eight operations and each choice of three-augment
DRAWS = tuple(f"draw {draw + 1}" for draw in range(COLUMNS))
INK, PAPER = (30, 30, 30), (255, 255, 255)


class Row(NamedTuple):
    """Pictures beside a label, each with a heading or none of them with one."""

    label: str
    pictures: list[Pixels]
    headings: tuple[str, ...] = ()


def rows(photo: Pixels, other: Pixels) -> Iterator[Row]:
    yield from view_rows(photo)
    yield from operation_rows(photo)
    draws: list[tuple[str, tuple[Augment, ...]]] = [
        ("three_augment", (ThreeAugment(),)),
        ("color_jitter\n0.3, hue 0.1", (ColorJitter(hue=0.1),)),
        ("random_erasing", (RandomErasing(probability=1.0),)),
        ("light1", AUGREG["light1"].augment),
        ("light2", AUGREG["light2"].augment),
        ("medium1\nmedium2", AUGREG["medium1"].augment),
        ("strong1\nstrong2", AUGREG["strong1"].augment),
    ]
    for number, (label, augments) in enumerate(draws):
        headings = DRAWS if number in {0, 3} else ()
        yield Row(label, [augmented(photo, augments, seed) for seed in range(SEED, SEED + COLUMNS)], headings)
    yield mixing_row(photo, other)


def view_rows(photo: Pixels) -> Iterator[Row]:
    """Crops for training."""
    image = whole = Size(SIDE, SIDE)
    rng = np.random.default_rng(SEED)
    single = [RandomResizedCrop().plan(whole, image, rng) for _ in range(COLUMNS)]
    yield Row("random_resized_crop", [crop_and_resize(photo, whole, plan) for plan in single], DRAWS)


def operation_rows(photo: Pixels) -> Iterator[Row]:
    """Every operation of RandAugment at four magnitudes, eight operations side by side."""
    names = list(OPERATIONS)
    for half in (names[:COLUMNS], names[COLUMNS:]):
        for magnitude in (0, 5, 10, 20):
            pictures = [OPERATIONS[name](photo, magnitude / 10, np.random.default_rng(4)) for name in half]
            yield Row(f"magnitude {magnitude}", pictures, tuple(half) if magnitude == 0 else ())


def augmented(photo: Pixels, augments: tuple[Augment, ...], seed: int) -> Pixels:
    rng = np.random.default_rng(seed)
    for augment in augments:
        photo = augment.apply(photo, rng)
    return photo


def mixing_row(photo: Pixels, other: Pixels) -> Row:
    images = torch.from_numpy(np.stack([photo, other])).permute(0, 3, 1, 2).float()  # (2, 3, SIDE, SIDE)
    targets = torch.eye(2)
    boxes = [cut_box(SIDE, SIDE, *place) for place in ((0.75, 110, 150), (0.5, 120, 90), (0.5, 215, 20))]
    mixed = [("mixup", mixup(images, targets, share)) for share in (0.9, 0.7, 0.5)]
    mixed += [("cutmix", cutmix(images, targets, box)) for box in boxes]
    headings = [f"{name} {batch.targets[0, 0]:.0%}" for name, batch in mixed]
    pictures = [photo, other, *(first_of(batch) for _, batch in mixed)]
    return Row("mixing: share\nof the photo", pictures, ("photo", "partner", *headings))


def first_of(batch: MixedBatch) -> Pixels:
    return batch.images[0].permute(1, 2, 0).round().byte().numpy()


def sheet(lines: list[Row]) -> Image.Image:
    """All rows below one another, with their labels at the left and headings above."""
    font = ImageFont.load_default(size=15)
    height = GAP + sum(TILE + GAP + (HEADING if line.headings else 0) for line in lines)
    paper = Image.new("RGB", (MARGIN + COLUMNS * (TILE + GAP), height), PAPER)
    pen = ImageDraw.Draw(paper)
    top = GAP
    for line in lines:
        for column, heading in enumerate(line.headings):
            center = MARGIN + column * (TILE + GAP) + TILE // 2
            pen.text((center, top + HEADING // 2), heading, INK, font, anchor="mm")
        top += HEADING if line.headings else 0
        pen.multiline_text((GAP + 2, top + TILE // 2), line.label, INK, font, anchor="lm")
        for column, picture in enumerate(line.pictures):
            tile = Image.fromarray(picture).resize((TILE, TILE), Image.Resampling.LANCZOS)
            paper.paste(tile, (MARGIN + column * (TILE + GAP), top))
        top += TILE + GAP
    return paper


def square(pixels: Pixels) -> Pixels:
    """The upper middle of a picture, where faces are, at the size that AugReg trained with."""
    fitted = ImageOps.fit(Image.fromarray(pixels), (SIDE, SIDE), Image.Resampling.BICUBIC, centering=(0.5, 0.2))
    return np.array(fitted)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tools.draw_augmentations PHOTO OUT.jpg")
    need = Size(SIDE, SIDE)
    sample = open_data("sample")
    partner = sample.of("train")[-1]
    photo = decode(Path(sys.argv[1]).read_bytes(), sys.argv[1], Decoding(), need)
    other = decode(sample.read(partner), partner.name, Decoding(), need)
    sheet(list(rows(square(photo), square(other)))).save(sys.argv[2], quality=75)
