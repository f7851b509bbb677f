"""The walkthrough: one image from its pixels to the prediction, with the model's own equations, shapes and numbers.

C channels, H x W pixels, N = R x S patches of P x Q pixels, L tokens, D width, K classes; n strips of D numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitral.core.activation import Activation, probabilities
from vitral.core.config import Size
from vitral.data.decoding.pixels import Pixels
from vitral.data.thumbnails import to_rgb_image
from vitral.explanation.explanation import Array, Photo, Step
from vitral.explanation.page.pictures import GAP_GRAY, heat_colors, scale_to_unit
from vitral.explanation.page.text import cell_name, describe_crop
from vitral.explanation.trace import Trace, fit_to_patches, mean_norm, record_outputs, to_array, trace_image
from vitral.explanation.walkthrough import equations
from vitral.models.attention import BaseAttention, Causal
from vitral.models.base import Grid, Model
from vitral.models.embed import Hybrid, HybridStem, Palette, PaletteStem, Patches, describe_stem, projected_values
from vitral.models.resnet import ResidualNetwork, ResnetBody
from vitral.models.vit import VisionTransformer, Vit

Color = tuple[int, int, int]
Numbers = tuple[tuple[str, float], ...]

MAX_CLASSES = 5  # classes that are named
MARKS: tuple[Color, ...] = ((230, 159, 0), (86, 180, 233), (0, 158, 115))  # safe for color-blind readers
SIDE = 448  # pixels: a smaller image is enlarged, each pixel to a square
LENGTH = 720  # approximate length of a strip in pixels
THICK, GAP, TAG = 22, 6, 14  # of a strip, between two, and of the mark at its left
BRIGHT = 98.0  # the percentile that gets the brightest color, so that a few outliers do not darken the rest


def format_shape(*sides: int) -> str:
    """`197 x 768`."""
    return " x ".join(map(str, sides))


def image_step(image: Tensor, photo: Photo) -> Step:
    """The image as normalized numbers (1, C, H, W)."""
    text = (
        f"{describe_crop(photo)} Each of its {image.numel():,} bytes, from 0 to 255, is normalized as in training, "
        "to a number around 0."
    )
    numbers = (("minimum", image.min().item()), ("mean", image.mean().item()), ("maximum", image.max().item()))
    return Step("The image becomes numbers", "", text, format_shape(*image.shape[1:]), numbers, (photo.crop,))


PROBABILITY_TEXT: dict[Activation, str] = {
    "softmax": "Each logit is exponentiated and divided by the sum over all classes, so that the probabilities sum to "
    "one. A logit higher by 1 makes a class 2.7 times as probable.",
    "sigmoid": "Each logit becomes 1 / (1 + exp(-logit)): every class has a probability of its own, and they need not "
    "sum to one. A logit of 0 is a probability of one half.",
}


def head_steps(equation: str, logits: Tensor, names: Sequence[str], activation: Activation) -> list[Step]:
    """The logits (K,) and the probabilities; nothing for a model without classes."""
    if not names:
        return []
    count, chances = len(names), probabilities(logits.float(), activation)  # (K,)
    best = logits.argsort(descending=True)[:MAX_CLASSES].tolist()
    shown = f"the top {len(best)} are shown" if count > len(best) else "all are shown"
    text = f"The head is a linear layer with one output for each of the {count:,} classes; {shown}."
    steps = (
        ("The head computes a logit for each class", equation.strip(), text, logits),
        ("Logits become probabilities", f"p = {activation}(logits)", PROBABILITY_TEXT[activation], chances),
    )
    return [
        Step(title, formula, text, format_shape(count), tuple((names[label], values[label].item()) for label in best))
        for title, formula, text, values in steps
    ]


@torch.no_grad()
def resnet_steps(model: ResidualNetwork, image: Tensor, names: Sequence[str]) -> list[Step]:
    """From an image (1, C, H, W) to the prediction of a ResNet."""
    units, mean, head = equations.resnet_equations(
        model.config.model_copy(update={"image_size": Size(*image.shape[2:])})
    )
    maps = convolution_step(model.body, image, units)
    pooled = model.forward_pooled(image)  # (1, D)
    text = "Every channel of the last feature map is averaged over all positions."
    numbers, strip = (("norm of the vector", pooled.norm().item()),), draw_vector_strips(to_array(pooled))
    pool = Step("Global average pooling", mean, text, format_shape(pooled.shape[1]), numbers, (strip,))
    return [maps, pool, *head_steps(head, model.head(pooled)[0], names, model.activation)]


@torch.no_grad()
def convolution_step(body: ResnetBody, image: Tensor, equation: str = "") -> Step:
    """From an image (1, C, H, W) to the last feature map of a ResNet body."""
    with record_outputs([body.root, *body.stages]) as outputs:
        last = body(image)  # (1, D, R, S)
    sizes = ", ".join(format_shape(*output.shape[1:]) for output in outputs)
    text = (
        f"From stage to stage the feature map gets smaller and has more channels: {sizes}. "
        "The images show the mean over channels after each stage."
    )
    named = [("the root", outputs[0].relu())]
    named += [(f"stage {number}", output) for number, output in enumerate(outputs[1:], start=1)]
    numbers = tuple((f"mean after {name}", output.mean().item()) for name, output in named)
    means = [output[0].mean(dim=0) for _, output in named]  # each (R, S)
    pictures = tuple(draw_heat_grid(to_array(mean).ravel(), Grid(*mean.shape)) for mean in means)
    return Step("Convolutions compute feature maps", equation, text, format_shape(*last.shape[1:]), numbers, pictures)


class Walkthrough(NamedTuple):
    """What the steps of one image are made from."""

    config: Vit  # at the size of this image
    photo: Photo
    trace: Trace
    grid: Grid
    marked: list[int]  # example patches


def walkthrough_steps(model: Model, image: Tensor, photo: Photo, names: Sequence[str]) -> tuple[Step, ...]:
    """The steps of one image (1, C, H, W) through a model in eval mode; without names there is no prediction."""
    photo, image = fit_to_patches(model, photo, image)
    first = image_step(image, photo)
    if isinstance(model, ResidualNetwork):
        return (first, *resnet_steps(model, image, names))
    assert isinstance(model, VisionTransformer)
    trace = trace_image(model, image)
    config = model.config.model_copy(update={"image_size": Size(*image.shape[2:])})
    grid = trace.layout.grid
    walk = Walkthrough(config, photo, trace, grid, example_patches(photo.crop, grid))
    root = [convolution_step(model.stem.body, image)] if isinstance(model.stem, HybridStem) else []
    pool, head = equations.output_equations(config)
    return (
        first,
        *root,
        *(palette_steps(walk, model.stem, image) if isinstance(model.stem, PaletteStem) else [patches_step(walk)]),
        *embedding_steps(walk),
        sequence_step(walk),
        *first_layer_steps(walk),
        *later_layers_steps(walk),
        pool_step(walk, pool, names),
        *head_steps(head, trace.logits, names, model.activation),
    )


def patches_step(walk: Walkthrough) -> Step:
    """The image, or the feature map of a hybrid, cut into patches."""
    stem, grid = walk.config.stem, walk.grid
    cells = grid.cells()
    pictures: tuple[Pixels, ...] = (draw_patches(walk.photo.crop, grid, walk.marked),)
    if isinstance(stem, Hybrid):
        count = stem.pixels()
        text = (
            f"The feature map is cut into {grid} = {cells} patches, each flattened to {count} numbers. "
            "The image shows which part each patch covers."
        )
        return Step("The feature map is cut into patches", "", text, format_shape(cells, count), (), pictures)
    count = projected_values(stem, walk.config.channels)
    if not isinstance(stem, Patches):
        text = (
            f"{grid} = {cells} {describe_stem(stem)}, each as {count} numbers. "
            "The image shows the part that each token belongs to; a token also sees pixels around it."
        )
        return Step("The image is cut into patches", "", text, format_shape(cells, count), (), pictures)
    text = (
        f"{grid} = {cells} patches of {format_shape(*stem.patch)} pixels. Each is flattened to {count} numbers, "
        "one channel after the other; the strips below are the patches in the frames of the same color."
    )
    rows, columns = stem.patch
    corners = [(cell // grid.columns * rows, cell % grid.columns * columns) for cell in walk.marked]
    cut = [walk.photo.crop[top : top + rows, left : left + columns] for top, left in corners]
    pictures = (*pictures, draw_pixel_strips(cut))
    return Step("The image is cut into patches", "", text, format_shape(cells, count), (), pictures)


def palette_steps(walk: Walkthrough, stem: PaletteStem, image: Tensor) -> list[Step]:
    """The image (1, C, H, W) in the colors of the palette, as its numbers are."""
    codes, grid = stem.codes(image), walk.grid
    given, coded = image[0].flatten(1), stem.colors(codes, grid)[0].flatten(1)  # each (C, N)
    low, high = given.min(), given.max()
    levels = ((coded - low) / (high - low).clamp(min=1e-6)).clamp(0, 1) * 255  # (C, N)
    picture = levels.round().byte().mT.unflatten(0, grid).cpu().numpy()  # (H, W, C)
    text = (
        f"Each of {grid} = {grid.cells()} pixels becomes the number of the nearest of {len(stem.palette):,} colors. "
        "The image shows those colors, its contrast stretched to that of the given numbers."
    )
    numbers = (
        ("different colors", float(len(codes.unique()))),
        ("mean distance of a pixel from its color", (given - coded).norm(dim=0).mean().item()),
    )
    shape = format_shape(grid.cells())
    shown = np.ascontiguousarray(np.asarray(to_rgb_image(picture)))
    return [Step("Pixels become colors of a palette", "k(i) = argmin_k |x_i - p_k|^2", text, shape, numbers, (shown,))]


def embedding_steps(walk: Walkthrough) -> list[Step]:
    """Patches to tokens; nothing for a hybrid without projection."""
    config, tokens = walk.config, walk.trace.patches  # (N, D)
    if isinstance(config.stem, Hybrid) and not config.stem.project:
        return []
    text = (
        f"The learned projection E, the same for all patches, maps each patch to a token of {config.width} numbers. "
        "Warm colors are positive, cold ones negative, dark ones near 0."
    )
    title = "Each patch becomes a token"
    if isinstance(config.stem, Palette):
        title = "Each color becomes a token"
        text = (
            f"The number of a color selects a row of the learned table E, {config.width} numbers. "
            "Warm colors are positive, cold ones negative, dark ones near 0."
        )
    numbers = (("mean norm of a token", mean_norm(tokens)),)
    strips = draw_vector_strips(to_array(tokens[walk.marked]), MARKS)
    equation = equations.embedding_equations(config)[1].strip()
    return [Step(title, equation, text, format_shape(*tokens.shape), numbers, (strips,))]


def sequence_step(walk: Walkthrough) -> Step:
    """Class token and registers set before the patches, and positions added (eq. 1)."""
    config, layout, tokens = walk.config, walk.trace.layout, walk.trace.tokens
    equation, _, position = equations.embedding_equations(config)
    before = ["a class token, from which the prediction is read"] * layout.cls
    before += [f"{layout.registers} registers, extra tokens that belong to no patch"] if layout.registers else []
    prefix = f"Before the patches: {', and '.join(before)}. " if before else "There is no token before the patches. "
    patches = tokens[layout.prefix() :]  # (N, D)
    acts = {
        "tokens": "A position embedding is added to each token.",
        "attention": "Nothing is added: positions act inside attention.",
        "nowhere": "There is no position: the model is invariant to the order of the patches.",
    }
    numbers = [("tokens", float(layout.length())), ("mean norm of a patch token", mean_norm(patches))]
    if config.position.applies_to == "tokens" and not config.tokens.norm:
        numbers.append(("mean norm of the position embedding", mean_norm(patches - walk.trace.patches)))
    kind = position.strip().removeprefix("position: ")
    text = f"{prefix}{acts[config.position.applies_to]} {kind}"
    shape, strips = format_shape(*tokens.shape), draw_vector_strips(to_array(patches[walk.marked]), MARKS)
    return Step("The sequence of tokens is built", equation, text, shape, tuple(numbers), (strips,))


def first_layer_steps(walk: Walkthrough) -> list[Step]:
    """The two halves of the first layer (eq. 2 and 3)."""
    first, mixer, second, mlp = equations.layer_equations(walk.config)
    change, size = walk.trace.layers[0], format_shape(*walk.trace.tokens.shape)
    lengths: Numbers = (("mean norm of a token", change.before), ("mean norm of the update", change.mixer))
    if isinstance(walk.config.mixer, BaseAttention):
        attention = attention_step(walk, first, mixer.strip(), lengths)
    else:
        attention = Step("Layer 1: token mixing", first, mixer.strip(), size, lengths)
    text = f"The same two-layer MLP is applied to each token: {mlp.strip()}."
    lengths = (("mean norm of the update", change.mlp), ("mean norm of a token after the update", change.after))
    return [attention, Step("Layer 1: MLP", second, text, size, lengths)]


def attention_step(walk: Walkthrough, equation: str, formula: str, lengths: Numbers) -> Step:
    """The attention of one patch in the first layer."""
    layout, cell = walk.trace.layout, walk.marked[0]
    row = walk.trace.attention[:, layout.prefix() + cell].mean(dim=0)  # (L,), over the heads
    patches = row[layout.prefix() :]  # (N,)
    most = int(patches.argmax())
    text = (
        "Each token has a query (q), a key (k) and a value (v); it receives the values, weighted by how well their "
        f"keys match its query: {formula}. The framed patch, {cell_name(cell, walk.grid)}, attends most to "
        f"{cell_name(most, walk.grid)}; the image shows its attention, averaged over the heads. Its weights sum to one."
    )
    if isinstance(walk.config.mixer, Causal):
        text += " It is causal: the tokens after a token, in reading order, have no weight."
    numbers = [*lengths, (f"weight of {cell_name(most, walk.grid)}", patches[most].item())]
    numbers += [("of itself", patches[cell].item())]
    numbers += [("of the class token", row[0].item())] * layout.cls
    numbers += [("of the registers", row[layout.cls : layout.prefix()].sum().item())] if layout.registers else []
    picture = draw_patches(heat_cells(to_array(patches), walk.grid), walk.grid, [cell])
    size = format_shape(*walk.trace.tokens.shape)
    return Step("Layer 1: self-attention", equation, text, size, tuple(numbers), (picture,))


def later_layers_steps(walk: Walkthrough) -> list[Step]:
    """All further layers in one step."""
    layers = walk.trace.layers
    if len(layers) == 1:
        return []
    changes = [each.change for each in layers]
    largest = max(range(len(changes)), key=changes.__getitem__) + 1
    title = f"Layers 2 to {len(layers)}" if len(layers) > 2 else "Layer 2"
    token = "the class token" if walk.trace.layout.cls else "the mean of the patches"
    text = (
        "Each of the other layers does the same with its own weights. The numbers are the mean norm of the update of a "
        f"token, relative to its norm; layer {largest} has the largest. "
        f"The strips are {token} after each layer, the first at the top."
    )
    numbers = tuple((f"layer {number}", change) for number, change in enumerate(changes, start=1))
    rows = F.normalize(torch.stack([each.summary for each in layers]), dim=1)  # (layers, D), as norms grow with depth
    strips = draw_vector_strips(to_array(rows))
    return [Step(title, "", text, format_shape(*walk.trace.tokens.shape), numbers, (strips,))]


def pool_step(walk: Walkthrough, equation: str, names: Sequence[str]) -> Step:
    """The pooled output of the last layer (eq. 4)."""
    last, pooled = walk.trace.last, walk.trace.pooled
    text = "One vector now represents the whole image."
    text += "" if names else " It is the output: this model has no classes."
    numbers = (("mean norm of a token", mean_norm(last)), ("norm of the vector", mean_norm(pooled)))
    strip = draw_vector_strips(to_array(pooled)[None])
    return Step("Pooling", equation, text, format_shape(*pooled.shape), numbers, (strip,))


def draw_patches(image: Pixels, grid: Grid, marked: Sequence[int] = ()) -> Pixels:
    """The image with gaps between its patches, and a colored frame around each marked one."""
    times = max(1, SIDE // max(image.shape[:2]))
    large = np.asarray(to_rgb_image(image)).repeat(times, axis=0).repeat(times, axis=1)  # (h, w, 3)
    height, width = large.shape[0] // grid.rows, large.shape[1] // grid.columns
    gap = max(2, min(height, width) // 8)
    tiles = large.reshape(grid.rows, height, grid.columns, width, 3)
    padded = np.pad(tiles, ((0, 0), (gap, 0), (0, 0), (gap, 0), (0, 0)), constant_values=GAP_GRAY)
    joined = padded.reshape(grid.rows * (height + gap), grid.columns * (width + gap), 3)
    whole = np.pad(joined, ((0, gap), (0, gap), (0, 0)), constant_values=GAP_GRAY)
    for color, cell in zip(MARKS, marked, strict=False):
        row, column = divmod(cell, grid.columns)
        top, left = row * (height + gap), column * (width + gap)
        box = whole[top : top + height + 2 * gap, left : left + width + 2 * gap]
        inside = box[gap:-gap, gap:-gap].copy()
        box[:] = color
        box[gap:-gap, gap:-gap] = inside
    return whole


def example_patches(image: Pixels, grid: Grid) -> list[int]:
    """Up to three patches: of the highest, the median and the lowest contrast."""
    height, width, channels = image.shape
    tiles = image.reshape(grid.rows, height // grid.rows, grid.columns, width // grid.columns, channels)
    contrast = tiles.std(axis=(1, 3)).mean(axis=-1).ravel()  # (R S,)
    order = np.argsort(-contrast, kind="stable")
    return list(dict.fromkeys([int(order[0]), int(order[len(order) // 2]), int(order[-1])]))


def draw_pixel_strips(patches: Sequence[Pixels]) -> Pixels:
    """Each patch (P, Q, C) as the vector that it is flattened to, one channel after the other."""
    strips = []
    for patch in patches:
        channels = patch.shape[-1]
        levels = patch.transpose(2, 0, 1).reshape(channels, -1, 1)  # (C, P Q, 1)
        tints = np.eye(3, dtype=np.uint8)[:, None] if channels == 3 else np.ones((channels, 1, 3), np.uint8)
        strips.append((levels * tints).reshape(-1, 3))  # (D, 3)
    return stack_strips(strips, MARKS)


def draw_vector_strips(rows: Array, marks: Sequence[Color] = ()) -> Pixels:
    """Each row (n, D) as a strip of heat colors."""
    brightest = max(float(np.percentile(np.abs(rows), BRIGHT)), float(np.finfo(np.float32).tiny))
    return stack_strips(list(heat_colors(rows / brightest)), marks)


def draw_heat_grid(values: Array, grid: Grid) -> Pixels:
    """Values of a feature map (R S,) as squares of heat colors."""
    times = max(1, SIDE // max(grid))
    return heat_cells(values, grid).repeat(times, axis=0).repeat(times, axis=1)


def heat_cells(values: Array, grid: Grid) -> Pixels:
    """A heat color for each value (R, S, 3), scaled by the largest magnitude."""
    return heat_colors(scale_to_unit(values)).reshape(*grid, 3)


def stack_strips(strips: Sequence[Pixels], marks: Sequence[Color]) -> Pixels:
    """Rows of colors (D, 3) as strips below each other, each with its mark at the left."""
    parts = []
    for index, strip in enumerate(strips):
        line = strip[None].repeat(max(1, LENGTH // len(strip)), axis=1)  # (1, w, 3)
        if line.shape[1] > 2 * LENGTH:
            line = np.asarray(Image.fromarray(line).resize((LENGTH, 1), Image.Resampling.BOX))
        for color in marks[index : index + 1]:
            tag = np.array([[color] * TAG + [(GAP_GRAY,) * 3] * GAP], np.uint8)  # (1, TAG + GAP, 3)
            line = np.concatenate([tag, line], axis=1)
        between = GAP if index < len(strips) - 1 else 0
        bar = line.repeat(THICK, axis=0)  # (THICK, w, 3)
        parts.append(np.pad(bar, ((0, between), (0, 0), (0, 0)), constant_values=GAP_GRAY))
    return np.concatenate(parts)
