"""Folders as the library writes them, made from its fixtures, and what is to be true of each."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import vitral
from tests.models.references import reference
from vitral.core.config import Size
from vitral.core.storage import Storage
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.head import NoHead
from vitral.models.vit import Vit
from vitral.weights.convert import select_format
from vitral.weights.formats.format import Format
from vitral.weights.formats.rules import export_tensors
from vitral.weights.load import LoadedModel

TOLERANCE = 1e-5
Tensors = Mapping[str, Tensor]


def folder(
    path: Path,
    name: str,
    *,
    tensors: Tensors | None = None,
    processor: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """The folder of a fixture, with other tensors, a processor, or other fields of config.json; None removes one."""
    found = reference(name)
    config = {field: value for field, value in (found.config | changes).items() if value is not None}
    path.mkdir(exist_ok=True)
    path.joinpath("config.json").write_text(json.dumps(config))
    if processor is not None:
        path.joinpath("preprocessor_config.json").write_text(json.dumps(processor))
    weights = found.weights if tensors is None else tensors
    save_file(
        {key: tensor.contiguous() for key, tensor in weights.items()}, path / "model.safetensors", {"format": "pt"}
    )
    return path


def alone(path: Path, name: str, tensors: Tensors | None = None) -> Path:
    """The tensors of a fixture without its config.json."""
    made = folder(path, name, tensors=tensors)
    made.joinpath("config.json").unlink()
    return made


def vit(loaded: LoadedModel) -> Vit:
    assert isinstance(loaded.bundle.model, Vit)
    return loaded.bundle.model


def largest_difference(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())


@torch.no_grad()
def check_answers(loaded: LoadedModel, name: str) -> None:
    """Tokens, logits and what is pooled agree with the library's, for images of both sizes."""
    answers = reference(name).answers
    model = loaded.model
    for size in ("", "_large"):
        if f"images{size}" not in answers:  # the library cannot do other sizes
            continue
        patch, images = vit(loaded).token_size().height, answers[f"images{size}"]
        if images.shape[-1] % patch or images.shape[-2] % patch:  # the library ignores what its patches do not cover
            images = images[..., : images.shape[-2] // patch * patch, : images.shape[-1] // patch * patch]
        tokens = torch.cat(model.forward_features(images)[:3], dim=1)
        assert largest_difference(tokens, answers[f"tokens{size}"]) <= TOLERANCE
        if f"logits{size}" in answers:
            assert not isinstance(model.config.head, NoHead)
            assert largest_difference(model(images), answers[f"logits{size}"]) <= TOLERANCE
        if f"pooled{size}" in answers:
            assert largest_difference(model(images), answers[f"pooled{size}"]) <= TOLERANCE


def check_round_trip(loaded: LoadedModel, path: Path, kind: str) -> Path:
    """Written for the library and read again, the model is the same to the last bit; the folder is given back."""
    found = select_format(loaded, "huggingface")
    assert found.name == kind
    return check_again(loaded, path, found)


def check_again(loaded: LoadedModel, path: Path, kind: Format) -> Path:
    path.mkdir()
    own = loaded.model.state_dict()
    tensors = export_tensors(kind.rules(vit(loaded), own), own)
    for name, pieces in kind.files(loaded.bundle, tensors).items():
        Storage().write_file(path / name, pieces)
    again = vitral.load(path)
    assert again.bundle.model == loaded.bundle.model
    assert sees(again.bundle.preprocessing) == sees(loaded.bundle.preprocessing)
    assert again.bundle.classes == loaded.bundle.classes
    other = again.model.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)
    return path


def sees(needs: Preprocessing) -> list[object]:
    """What is done to pictures of several sizes, whatever numbers it is told in."""
    pixels = torch.arange(256).to(torch.uint8).expand(1, needs.decoding.channels, 1, -1)
    glimpses = [needs.crop.plan(Size(*size), needs.image_size) for size in ((300, 500), (41, 40), (500, 501))]
    return [needs.image_size, glimpses, needs.normalize.apply(pixels).tolist()]
