"""Model cards: the README.md of a bundle, in Markdown with the header that Hugging Face reads."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.attention import BaseAttention
from vitral.models.embed import describe_stem
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle

MOST_CLASSES = 100  # that are named in the card
# In the words of the hub.
PURPOSES = {
    "classify": "image-classification",
    "masked_patches": "image-feature-extraction",
    "features": "image-feature-extraction",
}

USE = """\
import torch
import vitral

model, bundle = vitral.load("PATH/TO/THIS/FOLDER")
image = bundle.transform("photo.jpg").unsqueeze(0)  # (1, C, H, W)
with torch.inference_mode():
"""
ANSWERS = {
    "classify": "    scores = model(image)[0]\nprint(bundle.classes[int(scores.argmax())])",
    "masked_patches": "    features = model.forward_features(image)\nprint(features.patches.shape)  # (1, N, D)",
    "features": "    vector = model.forward_pooled(image)\nprint(vector.shape)  # (1, D)",
}


class TrainingFacts(NamedTuple):
    """The images it was trained on, and how."""

    data: str  # the name or path of the set
    images: Mapping[str, int]  # by split
    fingerprint: str  # of the set
    recipe: tuple[str, ...]  # a line each: the recipe's name, the optimizer, the augmentation, the start
    steps: int
    seconds: float


class Result(NamedTuple):
    """A share of images that were answered rightly, with its 95% interval."""

    name: str  # `accuracy`
    value: float
    low: float
    high: float
    split: str
    images: int
    chosen: bool  # whether the weights were chosen among others for this very figure


class CardFacts(NamedTuple):
    """What a card tells beside what the bundle says."""

    name: str
    trained: TrainingFacts | None  # unknown of weights that were not trained here
    results: tuple[Result, ...]


def render_card(bundle: Bundle, facts: CardFacts) -> str:
    """The card of a bundle, for a colleague who was not there."""
    parameters = sum(weight.numel() for weight in bundle.model.build_empty().parameters())
    sections = {
        "": _summary(bundle, parameters),
        "How to use it": f"```python\n{USE}{ANSWERS[bundle.task]}\n```",
        "Results": _results(facts.results),
        "Classes": _classes(bundle.classes),
        "Origin": "\n\n".join(filter(None, (_plain(bundle.source), _assumptions(bundle.assumptions)))),
        "Data": _data(facts.trained) if facts.trained else "",
        "Preprocessing": f"{_preprocessing(bundle.preprocessing)} `bundle.transform` does all of it.",
        "Training": _training(facts.trained) if facts.trained else "",
        "Limits": _bullets(_limits(bundle, facts)),
        "License": "Not stated. If you share these weights, state it here, and consider the license of the images.",
    }
    body = "\n\n".join(f"## {title}\n\n{text}" if title else text for title, text in sections.items() if text)
    return f"{_header(bundle, facts)}\n# {_plain(facts.name)}\n\n{body}\n"


def _header(bundle: Bundle, facts: CardFacts) -> str:
    """What the hub reads. Text is in JSON, which is YAML too."""
    kind = "resnet" if isinstance(bundle.model, Resnet) else "vision-transformer"
    metrics = sorted({result.name for result in facts.results})
    lines = ["library_name: vitral", f"pipeline_tag: {PURPOSES[bundle.task]}", "tags:", f"- {kind}", "- vitral"]
    lines += ["metrics:", *(f"- {json.dumps(name)}" for name in metrics)] if metrics else []
    return "\n".join(["---", *lines, "---", ""])


def _summary(bundle: Bundle, parameters: int) -> str:
    purpose = {
        "classify": f"It classifies images into {len(bundle.classes):,} classes.",
        "masked_patches": "It was pre-trained on masked patches, without labels. Fine-tune it for a task.",
        "features": "It has no head and computes one feature vector per image.",
    }
    return f"{architecture(bundle.model)}, {parameters:,} parameters. {purpose[bundle.task]}"


def architecture(model: Vit | Resnet) -> str:
    """The model in a line: `A Vision Transformer (arXiv 2010.11929): 12 layers of width 192, ...`."""
    if isinstance(model, Resnet):
        units = ", ".join(map(str, model.layers))
        return f"A ResNet (BiT): stages of {units} units, root of width {model.root}, for {model.image_size} images"
    heads = f", {model.mixer.heads} heads" if isinstance(model.mixer, BaseAttention) else f", {model.mixer.kind} mixer"
    return (
        f"A Vision Transformer (arXiv 2010.11929): {model.depth} layers of width {model.width}{heads}, "
        f"{model.layout(model.image_size).grid} {describe_stem(model.stem)}, for {model.image_size} images"
    )


def _results(results: tuple[Result, ...]) -> str:
    if not results:
        return "Not measured."
    table = ["| metric | value | 95% confidence interval | images |", "|---|---|---|---|"]
    for each in results:
        interval, images = f"{each.low:.2%} to {each.high:.2%}", f"{each.images:,} for {each.split}"
        table.append(f"| {_plain(each.name)} | {each.value:.2%} | {interval} | {images} |")
    return "\n".join(table)


def _classes(classes: tuple[str, ...]) -> str:
    if not classes:
        return ""
    named = ", ".join(map(_plain, classes[:MOST_CLASSES]))
    more = f", and {len(classes) - MOST_CLASSES:,} more" if len(classes) > MOST_CLASSES else ""
    return f"In the order of their labels, as in `config.json`: {named}{more}."


def _assumptions(assumptions: tuple[str, ...]) -> str:
    if not assumptions:
        return ""
    return f"The file did not record everything. Assumed:\n\n{_bullets(map(_plain, assumptions))}"


def _data(trained: TrainingFacts) -> str:
    counts = ", ".join(f"{count:,} for {split}" for split, count in trained.images.items())
    return (
        f"{_plain(trained.data)}; images: {counts}. "
        f"Fingerprint of their names, labels, splits and sizes: `{trained.fingerprint}`."
    )


def _preprocessing(given: Preprocessing) -> str:
    channels, view, scaling = given.decoding.channels, given.crop, given.normalize
    colors = {1: "gray", 3: "red, green and blue"}.get(channels, f"{channels} channels")
    if isinstance(view, CenterCrop):
        side = "the shorter side" if view.aspect == "keep" else "both sides, whatever their ratio"
        seen = f"a center crop ({view.fraction:.1%} of {side})"
    else:
        seen = "the whole image"
    mean, deviation = (", ".join(f"{number:g}" for number in each) for each in (scaling.mean, scaling.std))
    return (
        f"The model takes {seen}, resized to {given.image_size} ({view.filter}), in {colors}. Each byte x becomes "
        f"(x / 255 - mean) / std, with mean {mean} and std {deviation}."
    )


def _training(trained: TrainingFacts) -> str:
    took = f"{trained.steps:,} steps in {format_duration(trained.seconds)}"
    return _bullets([*map(_plain, trained.recipe), took])


def _limits(bundle: Bundle, facts: CardFacts) -> Iterator[str]:
    """What the figures do not say."""
    if bundle.task == "classify":
        yield f"It always predicts one of its {len(bundle.classes):,} classes, even if the image shows something else."
    if chosen := sorted({result.split for result in facts.results if result.chosen}):
        images = f"The images for {' and '.join(chosen)}"
        yield f"{images} also selected the best weights, so their results are slightly optimistic."
    yield "The results hold for images like those it was trained on. Evaluate it on other images before you rely on it."


def format_duration(seconds: float) -> str:
    """The two units that matter: `42 s`, `12 min 4 s`, `3 h 20 min`, `2 d 5 h`."""
    left = max(0, round(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for place, (unit, size) in enumerate(units):
        if left >= size:
            whole, rest = divmod(left, size)
            smaller, smaller_size = units[min(place + 1, 3)]
            part = rest // smaller_size
            return f"{whole} {unit} {part} {smaller}" if part else f"{whole} {unit}"
    return "0 s"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    return re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", " ".join(text.split()))
