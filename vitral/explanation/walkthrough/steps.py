"""The walk-through: one image from its pixels to the answer, with the model's own equations, shapes and numbers.

C channels, H x W pixels, N patches, L tokens, D width, K classes.

The beginning and the end of the walk-through, which all models share.  C channels, H x W pixels, K classes.
The walk-through of a ResNet, whether it is the whole model or the stem of a hybrid.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitral.core.config import Size
from vitral.data.decoding.pixels import Pixels
from vitral.explanation.explanation import Array, Photo, Stage
from vitral.explanation.page.text import crop_told, place
from vitral.explanation.trace import Watched, length, overheard, watched
from vitral.explanation.walkthrough.equations import answer, embedding, layers, residual_equations
from vitral.explanation.walkthrough.strips import (
    MARKS,
    cut_up,
    examples,
    heat_panes,
    heat_picture,
    number_strips,
    pixel_strips,
)
from vitral.models.base import Grid, Model
from vitral.models.embed import Hybrid, HybridStem
from vitral.models.attention import BaseAttention
from vitral.models.resnet import ResnetBody, ResidualNetwork
from vitral.models.vit import VisionTransformer, Vit

MOST = 5  # classes that are named


def shape(*sides: int) -> str:
    """`197 x 768`."""
    return " x ".join(map(str, sides))


def array(tensor: Tensor) -> Array:
    return tensor.detach().float().cpu().numpy()


def picture_stage(image: Tensor, photo: Photo) -> Stage:
    """The picture as numbers (1, C, H, W)."""
    words = (
        f"{crop_told(photo)} Each of its {image.numel():,} bytes, from 0 to 255, becomes a number around 0: "
        "the scale that the model was trained with."
    )
    numbers = (("least", image.min().item()), ("mean", image.mean().item()), ("greatest", image.max().item()))
    return Stage("The picture becomes numbers", "", words, shape(*image.shape[1:]), numbers, (photo.seen,))


def answer_stages(equation: str, scores: Tensor, names: Sequence[str]) -> list[Stage]:
    """The head's scores (K,) and the probabilities they become; nothing where the model names no classes."""
    if not names:
        return []
    count, chances = len(names), scores.float().softmax(dim=0)  # (K,)
    best = scores.argsort(descending=True)[:MOST].tolist()
    tops = f"the best {len(best)} are below" if count > len(best) else "here they are"
    words = f"The head weighs the numbers of that vector, once for each of the {count:,} classes: {tops}."
    first = Stage(
        "The head gives each class a score",
        equation.strip(),
        words,
        shape(count),
        tuple((names[label], scores[label].item()) for label in best),
    )
    words = (
        "Each score is taken as a power of e and divided by the sum of all of them, so that they add up to one. "
        "One more in score makes a class 2.7 times as probable."
    )
    second = Stage(
        "Scores become probabilities",
        "p = softmax(scores)",
        words,
        shape(count),
        tuple((names[label], chances[label].item()) for label in best),
    )
    return [first, second]


@torch.no_grad()
def residual_stages(model: ResidualNetwork, image: Tensor, names: Sequence[str]) -> list[Stage]:
    """From an image (1, C, H, W) to the answer of a ResNet."""
    units, mean, head = residual_equations(model.config.model_copy(update={"image_size": Size(*image.shape[2:])}))
    maps = map_stage(model.body, image, units)
    pooled = model.pooled(image)  # (1, D)
    words = "Every channel of the last map is averaged over all places: what is left is what was seen, not where."
    numbers = (("length of the vector", pooled.norm().item()),)
    pool = Stage("The map is averaged", mean, words, shape(pooled.shape[1]), numbers, (number_strips(array(pooled)),))
    return [maps, pool, *answer_stages(head, model.head(pooled)[0], names)]


@torch.no_grad()
def map_stage(body: ResnetBody, image: Tensor, equation: str = "") -> Stage:
    """From an image (1, C, H, W) to the last map of a ResNet's body."""
    with overheard([body.root, *body.stages]) as outputs:
        last = body(image)  # (1, D, R, S)
    sizes = ", ".join(shape(*output.shape[1:]) for output in outputs)
    words = (
        "They look through small windows, and from stage to stage the map gets coarser and deeper: "
        f"{sizes}. The panes show how much answers at each place after each stage."
    )
    named = [("the root", outputs[0].relu())]
    named += [(f"stage {number}", output) for number, output in enumerate(outputs[1:], start=1)]
    numbers = tuple((f"mean after {name}", output.mean().item()) for name, output in named)
    pictures = tuple(answering(output) for _, output in named)
    return Stage("Convolutions look at the picture", equation, words, shape(*last.shape[1:]), numbers, pictures)


def answering(output: Tensor) -> Pixels:
    """The mean over channels of a map (1, D, R, S) as panes of color."""
    return heat_picture(array(output[0].mean(dim=0)).ravel(), Grid(output.shape[2], output.shape[3]))


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
    config = model.config.model_copy(update={"image_size": Size(*image.shape[2:])})
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
        "one channel after the other: the strips below are the patches in the frames of the same color."
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
        "the layers work with. Warm colors are above 0, cold ones below, dark ones near it."
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
    if isinstance(way.config.mixer, BaseAttention):
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
    message = "the class token" if way.seen.layout.cls else "the mean of the patches"
    words = (
        "Each layer has weights of its own. The numbers say how far a token moves in it, as a share of its length: "
        f"furthest in layer {furthest}. The strips are {message} after each layer, the first at the top."
    )
    numbers = tuple((f"layer {number}", change) for number, change in enumerate(changes, start=1))
    rows = F.normalize(torch.stack([each.read for each in moved]), dim=1)  # (layers, D): tokens grow, colors do not
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
