"""What the model looked at: answers that are right and answers that are wrong, and the model itself.

H x W pixels, C channels, R x S patches, L layers, K classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitral.core.errors import DataError
from vitral.data.decoding.pixels import Pixels
from vitral.data.samples import Item, Samples
from vitral.data.thumbnails import viewable
from vitral.explanation.attention_distance import mean_distances
from vitral.explanation.class_probability import batches
from vitral.explanation.explanation import Array, ModelView
from vitral.explanation.filters import filters_of
from vitral.explanation.page.page import figures_of
from vitral.explanation.page.pictures import drawing, heat
from vitral.explanation.relevance import relevance
from vitral.explanation.similarity import positions_of
from vitral.explanation.trace import attends
from vitral.html.charts import HEIGHT, WIDTH, Axis, Chart, Dot, Tick, round_axis
from vitral.runs.report.story import Attended, Glance, Judgment
from vitral.weights.load import Loaded

MOST = 8  # pictures of each kind
SIDE = 112  # pixels of a picture on the page
MEASURED = 64  # images that attention distance is a mean over
STRENGTH = 0.65  # of the colors over a picture


def attended(loaded: Loaded, samples: Samples, judgment: Judgment) -> Attended:
    """The surest right answer of each class, the surest wrong ones, and the figures of the model."""
    answers, items = judgment.answers, samples.of(judgment.split)
    order = answers.sure.argsort(descending=True, stable=True)  # (N,)
    is_right = answers.given[order] == answers.labels[order]  # (N,)
    right, wrong = order[is_right].tolist(), order[~is_right].tolist()
    first = {int(answers.labels[row]): row for row in reversed(right)}  # the surest of each class
    surest = [first[label] for label in sorted(first)]
    glances = [_glances(loaded, samples, judgment, rows[:MOST]) for rows in (surest, wrong)]
    spread = np.linspace(0, len(items) - 1, min(MEASURED, len(items))).round().astype(int)
    view = _model_view(loaded, samples, [items[place] for place in spread])
    return Attended(glances[0], glances[1], figures_of(view), draw_distances(view))


def _model_view(loaded: Loaded, samples: Samples, items: Sequence[Item]) -> ModelView:
    filters = filters_of(loaded.model)
    seen = [pixels for item in items if (pixels := _seen(loaded, samples, item)) is not None]
    images = [_tensor(loaded, pixels) for pixels in seen if attends(loaded.model)]  # each (C, H, W)
    far = mean_distances(loaded.model, batches(images)) if images else torch.empty(0, 0)  # (L, H)
    positions = positions_of(loaded.model, loaded.model.config.layout(loaded.bundle.preprocessing.image_size)).values
    return ModelView(filters.components, filters.shares, positions, far.numpy(), len(images))


def _glances(loaded: Loaded, samples: Samples, judgment: Judgment, rows: Sequence[int]) -> tuple[Glance, ...]:
    if not attends(loaded.model):
        return ()
    answers, items = judgment.answers, samples.of(judgment.split)
    found = []
    for row in rows:
        item, chances = items[int(answers.places[row])], answers.logits[row].double().softmax(dim=0)  # (K,)
        given = int(chances.argmax())
        pixels = _seen(loaded, samples, item)
        if pixels is None:
            continue
        values = relevance(loaded.model, _tensor(loaded, pixels)[None], [given])[0].cpu().numpy()  # (R, S)
        label, answer = samples.classes[int(answers.labels[row])], samples.classes[given]
        pair = (drawing(large(pixels)), drawing(overlaid(pixels, values)))
        found.append(Glance(item.name, label, answer, float(chances[given]), *pair))
    return tuple(found)


def _seen(loaded: Loaded, samples: Samples, item: Item) -> Pixels | None:
    """What the model sees of an image (H, W, C); nothing of one that was sound when it was judged and is no more."""
    try:
        return loaded.bundle.preprocessing.pixels(samples.read(item), item.name)
    except DataError:
        return None


def _tensor(loaded: Loaded, pixels: Pixels) -> Tensor:
    """The pixels as the model takes them (C, H, W), where it is."""
    device = next(loaded.model.parameters()).device
    image = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None].to(device)  # (1, C, H, W)
    return loaded.bundle.preprocessing.normalize.apply(image)[0]


def large(pixels: Pixels) -> Pixels:
    """The picture in color, at the size of the page: small pixels as squares, many of them smoothed."""
    picture = viewable(pixels)
    scale = SIDE / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    return np.asarray(picture.resize(size, how))


def overlaid(pixels: Pixels, values: Array) -> Pixels:
    """The picture under the colors of a map (R, S), its patches as squares."""
    picture = large(pixels)
    least = values - values.min()
    colors = heat(least / max(float(least.max()), np.finfo(np.float32).tiny))  # (R, S, 3)
    size = (picture.shape[1], picture.shape[0])
    glass = np.asarray(Image.fromarray(colors).resize(size, Image.Resampling.NEAREST))
    return (picture * (1 - STRENGTH) + glass * STRENGTH).round().astype(np.uint8)


def draw_distances(view: ModelView) -> tuple[Chart, ...]:
    """How far each head looks, a column of dots for each layer; no chart where nothing attends."""
    found = view.distances  # (L, H)
    if not found.size:
        return ()
    layers, heads = found.shape
    along, up = Axis(0, layers, 1, WIDTH), round_axis(0, float(found.max()), HEIGHT, 5)
    dots = tuple(
        Dot(
            "",
            along.place(layer + 0.5),
            HEIGHT - up.place(found[layer, head]),
            f"layer {layer + 1}, head {head + 1}: {found[layer, head]:.1f} pixels",
        )
        for layer in range(layers)
        for head in range(heads)
    )
    first, last = (f"{row.min():.1f} to {row.max():.1f} pixels" for row in (found[0], found[-1]))
    alt = f"Mean attention distance over {view.images} images: {first} in the first layer, {last} in the last."
    return (
        Chart(
            title="how far heads look, in pixels",
            alt=alt,
            across=tuple(
                Tick(along.place(layer + 0.5), str(layer + 1)) for layer in range(0, layers, 1 + layers // 13)
            ),
            upward=tuple(Tick(HEIGHT - up.place(value), f"{value:g}") for value in up.ticks()),
            across_name="layer",
            lines=(),
            bars=(),
            dots=dots,
            legend=(),
            caption=f"A dot for each head. {alt}",
        ),
    )
