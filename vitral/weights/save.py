"""Save a model from one's own training loop as a bundle."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from vitral.core.errors import ConfigError
from vitral.core.storage import make_folders, wrap_write_errors
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.base import Model, find_mismatches, raise_mismatches
from vitral.models.head import NoHead
from vitral.weights.bundle import Bundle, write_bundle
from vitral.weights.card import CardFacts, render_card
from vitral.weights.load import describe_non_finite

log = logging.getLogger("vitral")
REBUILD = 'build the model as it is now, for example vitral.create_model("B/16", num_classes=10), and load its weights'


def save(
    model: nn.Module, folder: str | Path, *, classes: Sequence[str] = (), transform: Preprocessing | None = None
) -> Path:
    """Write a model as a bundle that `vitral.load` and every command read; the folder is replaced as a whole.

    `classes` are the names of the labels in order; without them the classes are numbered. `transform` is what images
    went through in training: `bundle.transform`, or a `vitral.Preprocessing`; without it the paper's is assumed, at
    the model's image size. The model may be wrapped by `torch.compile` or `DistributedDataParallel`.
    """
    inner = unwrap(model)
    config, home = inner.config, Path(folder).expanduser()
    num_classes = 0 if isinstance(config.head, NoHead) else config.head.num_classes
    if isinstance(classes, str):
        message, hint = "expected a list of names, got one text", 'use classes=["cat", "dog"]'
        raise ConfigError(message, code="config.wrong_type", where="classes", hint=hint)
    if transform is not None and not isinstance(transform, Preprocessing):
        message = f"expected bundle.transform or a vitral.Preprocessing, got {type(transform).__name__}"
        hint = "describe the transform as vitral.Preprocessing(image_size=..., crop=..., normalize=...)"
        raise ConfigError(message, code="config.wrong_type", where="transform", hint=hint)
    names = tuple(classes)
    messages = []
    if num_classes and not names:
        names = tuple(map(str, range(num_classes)))
        messages.append(f"assumed: classes numbered from 0 to {num_classes - 1}; pass classes= to name them")
    if transform is None:
        decoding = Decoding(channels=config.channels, jpeg_scale="triple")
        transform = Preprocessing(image_size=config.image_size, decoding=decoding)
        what = f"whole images resized to {config.image_size}, values from -1 to 1"
        messages.append(f"assumed: the paper's preprocessing, {what}; pass transform= to record another")
    bundle = Bundle(
        model=config,
        task="classify" if num_classes else "features",
        preprocessing=transform,
        classes=names,
        activation=inner.activation,
    )
    tensors = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in inner.state_dict().items()}
    raise_mismatches(find_mismatches(config.build_empty().state_dict(), tensors), "model", REBUILD)
    if faults := describe_non_finite(tensors):
        raise_mismatches([faults], "model", "save weights from before training diverged", "weights.not_finite")
    with wrap_write_errors(home):
        make_folders(home.parent)
    write_bundle(home, bundle, tensors, render_card(bundle, CardFacts(home.absolute().name, None, ())))
    for line in messages:
        log.info(line)
    return home


def unwrap(model: nn.Module) -> Model:
    """The model inside the wrappers of torch; ConfigError if it is not one of ours."""
    inner: object = model
    while not isinstance(inner, Model) and isinstance(inner, nn.Module):
        inner = getattr(inner, "_orig_mod", getattr(inner, "module", None))  # torch.compile; DDP, averaged models
    if isinstance(inner, Model):
        return inner
    message = f"expected a model of vitral.create_model or vitral.load, got {type(model).__name__}"
    hint = "save others with torch.save; a ViT of another library is read by vitral.load from its checkpoint file"
    raise ConfigError(message, code="config.wrong_type", where="model", hint=hint)
