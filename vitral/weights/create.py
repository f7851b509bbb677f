"""`create_model`: a model with random weights, or with published ones and a new head."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from vitral.core.config import override
from vitral.core.custom import trusted
from vitral.core.documents import is_document
from vitral.core.errors import WeightsError
from vitral.models.attention import BaseAttention
from vitral.models.base import Model, raise_mismatches
from vitral.models.registry import ModelLike, ModelOptions, model_config
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.weights.adapt import ADAPTABLE, CONFIG_HINT, adapt, config_differences, load_pretrained
from vitral.weights.load import open_model

log = logging.getLogger("vitral")


def create_model(
    model: ModelLike,
    *,
    weights: str | Path = "",
    settings: Mapping[str, object] | None = None,
    trust: bool = False,
    **options: Unpack[ModelOptions],
) -> Model:
    """A model by name, config file or config: `create_model("B/16", num_classes=10, image_size=224)`.

    Options are the fields of the model; `settings` takes any field by its path, such as `{"mixer.heads": 8}`. With
    `weights`, whatever `load` takes, the architecture is that of the weights, which must have the size of the named
    model; `num_classes` replaces their head by a new one, which starts at zero.
    """
    with trusted(trust):
        changes: dict[str, Any] = {**options, **(settings or {})}
        return _pretrained(model, str(weights), changes) if weights else model_config(model, changes).build()


def _pretrained(model: ModelLike, weights: str, changes: Mapping[str, Any]) -> Model:
    opened = open_model(weights)
    source, messages = opened.loaded, opened.messages
    old = source.bundle.model
    if _size(model_config(model)) != _size(old):
        raise WeightsError(
            f"expected {_size(model_config(model))} as in {model}, found {_size(old)}",
            code="weights.config_mismatch",
            where=weights,
            hint="name the model of the weights, or other weights",
        )
    fitted = adapt(source, **{name: changes[path] for path, name in ADAPTABLE.items() if path in changes})
    if {"num_classes", "head", "head.num_classes"} & changes.keys():
        new = override(old, {"head": "linear"} | dict(changes)).build()
        messages = (*messages, *load_pretrained(new, source))
    else:
        new = override(fitted.loaded.bundle.model, changes).build_empty()
        faults = config_differences(fitted.loaded.bundle.model, new.config, ())
        raise_mismatches(faults, weights, CONFIG_HINT, "weights.config_mismatch")
        new.load_weights(fitted.loaded.model.state_dict())
        messages = (*messages, *fitted.messages)
    for message in messages:
        log.info(message)
    return new


def is_name_of(name: ModelLike, model: Vit | Resnet) -> bool:
    """Whether `name` is the name of an architecture, such as S/14, of the size that the model has."""
    return isinstance(name, str) and not is_document(name) and _size(model_config(name)) == _size(model)


def _size(model: Vit | Resnet) -> str:
    """What a model's name says: its layers, width, heads and patches."""
    if isinstance(model, Resnet):
        return f"a ResNet with {model.layers} units and a root of {model.root}"
    heads = f", {model.mixer.heads} heads" if isinstance(model.mixer, BaseAttention) else ""
    return f"{model.depth} layers of width {model.width}{heads}, {model.token_size()} pixels a patch"
