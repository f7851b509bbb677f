"""Relevance maps of right and wrong predictions, and what the model itself looks like.

H x W pixels, C channels, R x S patches, L layers, K classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitral.core.activation import probabilities
from vitral.core.errors import DataError
from vitral.data.decoding.pixels import Pixels
from vitral.data.samples import Item, Samples
from vitral.data.thumbnails import picture_url, to_rgb_image
from vitral.explanation.attention_distance import mean_attention_distance
from vitral.explanation.explanation import Array, ModelView
from vitral.explanation.page.page import model_section
from vitral.explanation.page.pictures import heat_colors, scale_to_unit
from vitral.explanation.perturbation import batch_images
from vitral.explanation.relevance import relevance
from vitral.explanation.similarity import embedding_filters, position_similarity
from vitral.explanation.trace import has_attention
from vitral.runs.report.report import AttentionExample, AttentionSection, ReportEvaluation
from vitral.weights.load import LoadedModel

MAX_EXAMPLES = 8  # images of each kind
SIDE = 224  # pixels of an image, which can be enlarged on the page
MAX_DISTANCE_IMAGES = 64  # images that the attention distance is averaged over
STRENGTH = 0.65  # opacity of the map


def attention_section(loaded: LoadedModel, samples: Samples, evaluation: ReportEvaluation) -> AttentionSection:
    """The most confident right prediction of each class, the most confident wrong ones, and the model itself."""
    predictions, items = evaluation.predictions, samples.of(evaluation.split)
    order = predictions.confidence.argsort(descending=True, stable=True)  # (N,)
    is_right = predictions.predicted[order] == predictions.labels[order]  # (N,)
    right, wrong = order[is_right].tolist(), order[~is_right].tolist()
    first = {int(predictions.labels[row]): row for row in reversed(right)}  # the most confident of each class
    right_of_class = [first[label] for label in sorted(first)]
    examples = [_examples(loaded, samples, evaluation, rows[:MAX_EXAMPLES]) for rows in (right_of_class, wrong)]
    indices = np.linspace(0, len(items) - 1, min(MAX_DISTANCE_IMAGES, len(items))).round().astype(int)
    view = _model_view(loaded, samples, [items[index] for index in indices])
    return AttentionSection(examples[0], examples[1], model_section(view))


def _model_view(loaded: LoadedModel, samples: Samples, items: Sequence[Item]) -> ModelView:
    filters = embedding_filters(loaded.model)
    crops = [pixels for item in items if (pixels := _crop(loaded, samples, item)) is not None]
    images = [_tensor(loaded, pixels) for pixels in crops if has_attention(loaded.model)]  # each (C, H, W)
    distances = mean_attention_distance(loaded.model, batch_images(images)) if images else torch.empty(0, 0)  # (L, H)
    layout = loaded.model.config.layout(loaded.bundle.preprocessing.image_size)
    positions = position_similarity(loaded.model, layout).values
    return ModelView(filters.components, filters.explained_variance, positions, distances.numpy(), len(images))


def _examples(
    loaded: LoadedModel, samples: Samples, evaluation: ReportEvaluation, rows: Sequence[int]
) -> tuple[AttentionExample, ...]:
    if not has_attention(loaded.model):
        return ()
    predictions, items = evaluation.predictions, samples.of(evaluation.split)
    found = []
    for row in rows:
        item = items[int(predictions.indices[row])]
        scores = probabilities(predictions.logits[row].double(), predictions.activation)  # (K,)
        predicted = int(scores.argmax())
        pixels = _crop(loaded, samples, item)
        if pixels is not None:
            values = relevance(loaded.model, _tensor(loaded, pixels)[None], [predicted])[0].cpu().numpy()  # (R, S)
            names = samples.classes[int(predictions.labels[row])], samples.classes[predicted]
            pictures = picture_url(enlarge(pixels)), picture_url(overlay_map(pixels, values))
            found.append(AttentionExample(item.name, *names, float(scores[predicted]), *pictures))
    return tuple(found)


def _crop(loaded: LoadedModel, samples: Samples, item: Item) -> Pixels | None:
    """The crop that the model is given (H, W, C); None for an unreadable file or a tensor of the user's own."""
    if loaded.bundle.preprocessing.external:
        return None
    try:
        return loaded.bundle.preprocessing.pixels(samples.read(item), item.name)
    except DataError:
        return None


def _tensor(loaded: LoadedModel, pixels: Pixels) -> Tensor:
    """The normalized pixels (C, H, W), on the model's device."""
    device = next(loaded.model.parameters()).device
    image = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None].to(device)  # (1, C, H, W)
    return loaded.bundle.preprocessing.normalize.apply(image)[0]


def enlarge(pixels: Pixels) -> Pixels:
    """The image in color at the size of the page: small images are enlarged to square pixels."""
    picture = to_rgb_image(pixels)
    scale = SIDE / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    return np.asarray(picture.resize(size, how))


def overlay_map(pixels: Pixels, values: Array) -> Pixels:
    """The image under the heat colors of a map (R, S)."""
    picture = enlarge(pixels)
    colors = heat_colors(scale_to_unit(values - values.min()))  # (R, S, 3)
    size = (picture.shape[1], picture.shape[0])
    overlay = np.asarray(Image.fromarray(colors).resize(size, Image.Resampling.NEAREST))
    return (picture * (1 - STRENGTH) + overlay * STRENGTH).round().astype(np.uint8)
