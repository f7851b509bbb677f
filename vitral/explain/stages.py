"""The walk-through: one image from its pixels to the answer, with the model's own equations, shapes and numbers.

C channels, H x W pixels, N patches, L tokens, D width, K classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitral.config import Size
from vitral.explain.ends import answer_stages, array, picture_stage, shape
from vitral.explain.equations import answer, embedding, layers
from vitral.explain.explanation import Photo, Stage
from vitral.explain.residual import map_stage, residual_stages
from vitral.explain.strips import MARKS, cut_up, examples, heat_panes, number_strips, pixel_strips
from vitral.explain.watching import Watched, length, watched
from vitral.explain.words import place
from vitral.model.bit import ResidualNetwork
from vitral.model.contract import Model
from vitral.model.mixer import AttentionKind
from vitral.model.shapes import Grid
from vitral.model.stem import Hybrid, HybridStem
from vitral.model.vit import VisionTransformer, Vit

Numbers = tuple[tuple[str, float], ...]


class Way(NamedTuple):
    """What the steps of one image are told from."""

    config: Vit  # for images of this one's size
    photo: Photo
    seen: Watched
    marked: list[int]  # patches that serve as examples

    @property
    def grid(self) -> Grid:
        return self.seen.layout.grid


def stages(model: Model, image: Tensor, photo: Photo, names: Sequence[str]) -> tuple[Stage, ...]:
    """The steps of one image (1, C, H, W) through a model in evaluation mode; no names, and there is no answer."""
    first = picture_stage(image, photo)
    if isinstance(model, ResidualNetwork):
        return (first, *residual_stages(model, image, names))
    assert isinstance(model, VisionTransformer)
    seen = watched(model, image)
    config = model.config.model_copy(update={"image": Size(*image.shape[2:])})
    way = Way(config, photo, seen, examples(photo.seen, seen.layout.grid))
    root = [map_stage(model.stem.body, image)] if isinstance(model.stem, HybridStem) else []
    pool, head = answer(config)
    return (
        first,
        *root,
        cut_stage(way),
        *embedding_stages(way),
        sequence_stage(way),
        *first_layer_stages(way),
        *later_layers_stages(way),
        pool_stage(way, pool, names),
        *answer_stages(head, seen.answer, names),
    )


def cut_stage(way: Way) -> Stage:
    """The picture, or the map of a hybrid, cut into patches."""
    stem, grid = way.config.stem, way.grid
    cells, pictures = grid.cells(), (cut_up(way.photo.seen, grid, way.marked),)
    if isinstance(stem, Hybrid):
        count = stem.pixels()
        words = (
            f"The map is cut into {grid} = {cells} patches, and each is laid out as a line of {count} numbers. "
            "The panes show which part of the picture a patch stands for."
        )
        return Stage("The map is cut into patches", "", words, shape(cells, count), (), pictures)
    count = way.config.channels * stem.patch.height * stem.patch.width
    words = (
        f"{grid} = {cells} patches of {shape(*stem.patch)} pixels. Each is laid out as a line of {count} numbers, "
        "one channel after the other: the strips below are the patches in the frames of the same colour."
    )
    rows, columns = stem.patch
    corners = [(cell // grid.columns * rows, cell % grid.columns * columns) for cell in way.marked]
    cut = [way.photo.seen[top : top + rows, left : left + columns] for top, left in corners]
    return Stage("The picture is cut into patches", "", words, shape(cells, count), (), (*pictures, pixel_strips(cut)))


def embedding_stages(way: Way) -> list[Stage]:
    """Patches to tokens; nothing where the map of a hybrid serves as it is."""
    config, tokens = way.config, way.seen.patches  # (N, D)
    if isinstance(config.stem, Hybrid) and not config.stem.project:
        return []
    words = (
        f"One learned matrix E, the same for all patches, turns each line into a token: {config.width} numbers that "
        "the layers work with. Warm colours are above 0, cold ones below, dark ones near it."
    )
    numbers = (("mean length of a token", length(tokens)),)
    strips = number_strips(array(tokens[way.marked]), MARKS)
    equation = embedding(config)[1].strip()
    return [Stage("Each patch becomes a token", equation, words, shape(*tokens.shape), numbers, (strips,))]


def sequence_stage(way: Way) -> Stage:
    """Class token and registers set before the patches, and positions added (eq. 1)."""
    config, layout, tokens = way.config, way.seen.layout, way.seen.tokens
    equation, _, position = embedding(config)
    before = ["a class token, which belongs to no patch and is there to be read at the end"] * layout.cls
    before += [f"{layout.registers} registers, where the layers may leave notes"] if layout.registers else []
    told = f"Before the patches stand {', and '.join(before)}. " if before else "Nothing is set before the patches. "
    patches = tokens[layout.prefix() :]  # (N, D)
    acts = {
        "tokens": "Where a patch was is added to its token, or the model could not tell left from right.",
        "attention": "Nothing is added for places: attention itself knows how far apart two patches are.",
        "nowhere": "Nothing tells where a patch was: to this model the patches are a bag.",
    }
    numbers = [("tokens", float(layout.length())), ("mean length of a patch's token", length(patches))]
    if config.position.acts == "tokens" and not config.tokens.norm:
        numbers.append(("mean length of what was added", length(patches - way.seen.patches)))
    words = f"{told}{acts[config.position.acts]} Here: {position.strip().removeprefix('position: ')}"
    strips = number_strips(array(patches[way.marked]), MARKS)
    return Stage("The sequence is complete", equation, words, shape(*tokens.shape), tuple(numbers), (strips,))


def first_layer_stages(way: Way) -> list[Stage]:
    """The two halves of the first layer (eq. 2 and 3)."""
    first, mixing, second, thinking = layers(way.config)
    moved, size = way.seen.layers[0], shape(*way.seen.tokens.shape)
    lengths: Numbers = (("mean length of a token", moved.before), ("mean length of what is added", moved.gathered))
    if isinstance(way.config.mixer, AttentionKind):
        exchange = looking_stage(way, first, mixing.strip(), lengths)
    else:
        exchange = Stage("Layer 1: tokens are mixed", first, mixing.strip(), size, lengths)
    words = f"Each token by itself passes the same two layers of neurons: {thinking.strip()}."
    lengths = (("mean length of what is added", moved.thought), ("mean length of a token after it", moved.after))
    return [exchange, Stage("Layer 1: each token thinks alone", second, words, size, lengths)]


def looking_stage(way: Way, equation: str, formula: str, lengths: Numbers) -> Stage:
    """What one patch looks at in the first layer."""
    layout, cell = way.seen.layout, way.marked[0]
    row = way.seen.attention[:, layout.prefix() + cell].mean(dim=0)  # (L,), over the heads
    patches = row[layout.prefix() :]  # (N,)
    most = int(patches.argmax())
    words = (
        "Each token asks a question (q) and offers a key (k); where a key fits the question, its token's value (v) is "
        f"taken over: {formula}. The framed patch, {place(cell, way.grid)}, looks most at "
        f"{place(most, way.grid)}; the panes show all it looks at, in the mean of the heads. Its weights add up to one."
    )
    numbers = [
        *lengths,
        (f"weight of {place(most, way.grid)}", patches[most].item()),
        ("of itself", patches[cell].item()),
    ]
    numbers += [("of the class token", row[0].item())] * layout.cls
    numbers += [("of the registers", row[layout.cls : layout.prefix()].sum().item())] if layout.registers else []
    picture = heat_panes(array(patches), way.grid, [cell])
    size = shape(*way.seen.tokens.shape)
    return Stage("Layer 1: tokens look at each other", equation, words, size, tuple(numbers), (picture,))


def later_layers_stages(way: Way) -> list[Stage]:
    """All further layers at once: they do the same with weights of their own."""
    moved = way.seen.layers
    if len(moved) == 1:
        return []
    changes = [each.change for each in moved]
    furthest = max(range(len(changes)), key=changes.__getitem__) + 1
    title = f"Layers 2 to {len(moved)}: the same again" if len(moved) > 2 else "Layer 2: the same again"
    what = "the class token" if way.seen.layout.cls else "the mean of the patches"
    words = (
        "Each layer has weights of its own. The numbers say how far a token moves in it, as a share of its length: "
        f"furthest in layer {furthest}. The strips are {what} after each layer, the first at the top."
    )
    numbers = tuple((f"layer {number}", change) for number, change in enumerate(changes, start=1))
    rows = F.normalize(torch.stack([each.read for each in moved]), dim=1)  # (layers, D): tokens grow, colours do not
    strips = number_strips(array(rows))
    return [Stage(title, "", words, shape(*way.seen.tokens.shape), numbers, (strips,))]


def pool_stage(way: Way, equation: str, names: Sequence[str]) -> Stage:
    """What is read of the last layer's tokens (eq. 4)."""
    last, pooled = way.seen.last, way.seen.pooled
    words = "One vector now stands for the whole picture."
    words += "" if names else " It is the answer: this model names no classes."
    numbers = (("mean length of a token", length(last)), ("length of the vector", length(pooled)))
    strip = number_strips(array(pooled)[None])
    return Stage("What is read", equation, words, shape(*pooled.shape), numbers, (strip,))
