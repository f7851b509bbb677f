"""The table of timm's Vision Transformers: what each name passes to the constructor of its class.

`tools/make_timm_architectures.py` writes it from timm itself.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vitral.core.errors import ConfigError, suggest_choice

TABLE = Path(__file__).with_name("architectures.json")


class Architecture(NamedTuple):
    """One name of timm's registry."""

    name: str
    kind: str  # which class of timm it is: vit, distilled, eva, beit, relpos, naflex
    arguments: Mapping[str, Any]  # of its constructor, where they are not the default
    images: Mapping[str, Mapping[str, Any]]  # by the tag of the weights, the default first: size, mean, crop
    signature: str  # of its tensors

    def image_facts(self, tag: str = "") -> Mapping[str, Any]:
        """`pretrained_cfg` of a set of weights, by default the first."""
        first = next(iter(self.images))
        if tag and tag not in self.images:
            hint = suggest_choice(tag, list(self.images))
            raise ConfigError(
                f"{self.name} has no weights {tag!r}", code="config.unknown_name", where="arch", hint=hint
            )
        return {**common_images(), **self.images[first], **self.images[tag or first]}


@cache
def _content() -> Mapping[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8"))


@cache
def architectures() -> Mapping[str, Architecture]:
    """All of them by name."""
    return {name: Architecture(name, **row) for name, row in _content()["models"].items()}


def common_images() -> Mapping[str, Any]:
    """The values of `images` that are not repeated in the table."""
    return _content()["images"]


def find_architecture(name: str) -> tuple[Architecture, str]:
    """The architecture of a name such as `vit_base_patch16_224.augreg_in21k`, and the tag behind the dot."""
    bare, _, tag = name.removeprefix("timm/").partition(".")
    if bare not in architectures():
        hint = suggest_choice(bare, list(architectures()))
        message = f"{bare!r} is not a Vision Transformer of timm"
        raise ConfigError(message, code="config.unknown_name", where="arch", hint=hint)
    return architectures()[bare], tag
