"""Files of other libraries in the fixtures, as those libraries write them, and what their models answer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.models.references import Reference, reference
from tests.weights.bundles import bundle_of
from vitral.core.config import override, parse_settings
from vitral.models.base import Model
from vitral.models.vit import Vit
from vitral.weights.formats.format import Format
from vitral.weights.formats.rules import export_tensors
from vitral.weights.load import LoadedModel, load

TOLERANCE = 1e-5
SMALL = (
    "image_size=32",
    "stem.patch=8",
    "width=36",
    "depth=2",
    "mixer.heads=3",
    "mlp.activation=gelu",
    "head.num_classes=4",
)


def put(folder: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> Path:
    """A folder with a file of weights, and a config.json beside it if there is something to note."""
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    if notes:
        (folder / "config.json").write_text(json.dumps(notes))
    return folder


def fixture(name: str, folder: Path, notes: bool = False) -> tuple[Path, Reference]:
    """The model of a fixture as a folder, with what its library notes beside it if that is wanted."""
    found = reference(name)
    return put(folder, found.weights, found.config if notes else None), found


def vit(loaded: LoadedModel) -> Vit:
    """What a loaded model turned out to be."""
    assert isinstance(loaded.bundle.model, Vit)
    return loaded.bundle.model


def differences(model: Model, answers: Mapping[str, Tensor], sizes: tuple[str, ...] = ("", "_large")) -> list[float]:
    """How far our tokens and logits are from the library's, for each image size that it was asked with."""
    found = []
    with torch.no_grad():
        for size in sizes:
            if f"images{size}" in answers:
                images = answers[f"images{size}"]
                tokens = torch.cat(model.forward_features(images)[:3], dim=1)
                pairs = [(tokens, answers[f"tokens{size}"])]
                if f"logits{size}" in answers:
                    pairs.append((model(images), answers[f"logits{size}"]))
                assert all(ours.shape == theirs.shape for ours, theirs in pairs)
                found += [float((ours - theirs).abs().max()) for ours, theirs in pairs]
    assert found
    return found


def layout(name: str, folder: Path) -> tuple[Path, Reference]:
    """A tiny model that a repository's own code wrote, as a folder, and its answers in float64."""
    return fixture(f"layouts/{name}", folder)


def relative_errors(model: Model, answers: Mapping[str, Tensor]) -> list[float]:
    """How far our tokens and output are from a repository's, in float64, for each image size that it was asked with."""
    exact, found = model.double(), []
    with torch.no_grad():
        for size in ("", "_other"):
            if f"images{size}" in answers:
                images = answers[f"images{size}"].double()
                tokens = torch.cat(exact.forward_features(images)[:3], dim=1)
                for ours, theirs in ((tokens, answers[f"tokens{size}"]), (exact(images), answers[f"output{size}"])):
                    assert ours.shape == theirs.shape
                    found.append(float((ours - theirs).abs().max() / theirs.abs().max()))
    assert found
    return found


def written_back(loaded: LoadedModel, kind: Format) -> dict[str, Tensor]:
    """What the rules of a format, which need not be one that is written, make of a model."""
    own = loaded.model.state_dict()
    return export_tensors(kind.rules(vit(loaded), own), own)


def rewritten(loaded: LoadedModel, kind: Format, folder: Path) -> dict[str, Tensor]:
    """What the format writes of a model, whose reading gives the very same tensors again."""
    model, bundle = loaded
    assert isinstance(bundle.model, Vit)
    assert not list(kind.unsupported(bundle))
    own = model.state_dict()
    tensors = export_tensors(kind.rules(bundle.model, own), own)
    folder.mkdir()
    for name, pieces in kind.files(bundle, tensors).items():
        (folder / name).write_bytes(b"".join(pieces))
    again = load(
        folder,
        settings=parse_settings([f"image_size={bundle.model.image_size}", *kind.required_settings(bundle.model)]),
        format=kind.name,
    )
    assert again.bundle.model == bundle.model
    assert own.keys() == again.model.state_dict().keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in again.model.state_dict().items())
    return tensors


def unlike(kind: Format, *settings: str) -> list[str]:
    """The fields of a small model with these settings that the format has no counterpart for."""
    bundle = bundle_of(override(Vit(), [*SMALL, *settings]))
    return [words.partition(":")[0] for words in kind.unsupported(bundle)]
