"""Vision towers of open_clip and of OpenAI's CLIP."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.errors import raises
from tests.models.references import Reference, reference
from tests.weights.bundles import bundle_of
from tests.weights.formats.files import layout, put, relative_errors, vit, written_back
from vitral.data.transforms.crop import CenterCrop, Resize
from vitral.models import Attention, ClassPool, MeanPool, Mlp, NoHead, ProjectionHead
from vitral.weights.formats.clip import OpenClip, OpenClipTimm
from vitral.weights.formats.format import Format
from vitral.weights.formats.rules import export_tensors
from vitral.weights.load import load, open_model
from vitral.weights.reader import read_checkpoint

TOWERS = ("open_clip", "open_clip_layer_scale", "open_clip_mean")
QUICK = {"mixer.heads": 2, "mlp.activation": "quick_gelu"}


def folder_of(name: str, path: Path, **more: Any) -> tuple[Path, Reference]:
    """A folder of the hub, with its config beside the weights."""
    folder, found = layout(name, path)
    (folder / "open_clip_config.json").write_text(json.dumps(found.config | more))
    return folder, found


@pytest.mark.parametrize("name", TOWERS)
def test_a_tower_answers_as_open_clip_does(tmp_path: Path, name: str) -> None:
    folder, found = folder_of(name, tmp_path / "a")
    loaded = load(folder)
    assert isinstance(vit(loaded).head, ProjectionHead)
    assert loaded.bundle.task == "features"
    written = {f"visual.{name}": tensor for name, tensor in written_back(loaded, OpenClip()).items()}
    assert written.keys() == {name for name in found.weights if name.startswith("visual.")}
    assert all(torch.equal(tensor, found.weights[name]) for name, tensor in written.items())
    assert max(relative_errors(loaded.model, found.answers)) <= 1e-6


def test_openai_s_files_say_that_they_have_quick_gelu(tmp_path: Path) -> None:
    folder, found = layout("openai_clip", tmp_path / "a")
    loaded = load(folder, settings={"mixer.heads": 2})
    mlp = vit(loaded).mlp
    assert isinstance(mlp, Mlp)
    assert mlp.activation == "quick_gelu"
    assert max(relative_errors(loaded.model, found.answers)) <= 1e-12


def test_without_a_config_the_kind_of_gelu_is_asked_for(tmp_path: Path) -> None:
    folder, found = layout("open_clip", tmp_path / "a")
    with raises("weights.missing_setting", "mlp.activation=quick_gelu", "-quickgelu"):
        load(folder, settings={"mixer.heads": 2})
    assert max(relative_errors(load(folder, settings=QUICK).model, found.answers)) <= 1e-6
    other = load(folder, settings=QUICK | {"mlp.activation": "gelu"}).model
    assert max(relative_errors(other, found.answers)) > 1e-4


def test_without_a_config_heads_are_asked_for_unless_a_published_model_has_the_width(tmp_path: Path) -> None:
    with raises("weights.missing_setting", "mixer.heads=N", 8):
        load(layout("open_clip", tmp_path / "a")[0], settings={"mlp.activation": "gelu"})


def test_without_a_config_the_pool_is_stated(tmp_path: Path) -> None:
    opened = open_model(layout("open_clip_mean", tmp_path / "a")[0], "mixer.heads=2", "mlp.activation=gelu")
    assert vit(opened.loaded).pool == MeanPool(norm="after")
    assert any(line.startswith("assumed: the mean of the patches") for line in opened.messages)
    opened = open_model(layout("open_clip", tmp_path / "b")[0], "mixer.heads=2", "mlp.activation=gelu")
    assert vit(opened.loaded).pool == ClassPool()
    assert any(line.startswith("assumed: the class token is pooled") for line in opened.messages)


def test_a_tower_saved_alone_is_the_same(tmp_path: Path) -> None:
    found = reference("layouts/open_clip")
    alone = {name.removeprefix("visual."): each for name, each in found.weights.items() if name.startswith("visual.")}
    assert max(relative_errors(load(put(tmp_path / "a", alone), settings=QUICK).model, found.answers)) <= 1e-6
    del alone["proj"]
    loaded = load(put(tmp_path / "b", alone), settings=QUICK)
    assert type(vit(loaded).head) is NoHead


def test_what_is_not_the_tower_is_ignored_with_the_reason(tmp_path: Path) -> None:
    lines = open_model(folder_of("open_clip", tmp_path / "a")[0]).messages
    assert "ignored logit_scale: scales the similarity of images and texts" in lines
    assert any(line.endswith("belongs to the text tower") for line in lines)


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ("visual.attn_pool.query", "attentional pool"),
        ("visual.transformer.resblocks.0.ln_attn.weight", "norm after attention"),
        ("visual.transformer.resblocks.0.attn.logit_scale", "cosines"),
        ("visual.transformer.resblocks.0.attn.head_scale", "factor for each head"),
    ],
)
def test_parts_without_a_counterpart_are_refused_by_name(tmp_path: Path, more: str, part: str) -> None:
    weights = reference("layouts/open_clip").weights | {more: torch.ones(2)}
    with raises("weights.unsupported", more.removeprefix("visual."), part):
        load(put(tmp_path / "a", weights), settings=QUICK)


def test_the_config_gives_heads_and_preprocessing(tmp_path: Path) -> None:
    fields = {"mean": [0.5, 0.4, 0.3], "std": [0.1, 0.2, 0.3], "interpolation": "bilinear", "resize_mode": "squash"}
    loaded = load(folder_of("open_clip", tmp_path / "a", preprocess_cfg=fields)[0])
    mixer, preprocessing = vit(loaded).mixer, loaded.bundle.preprocessing
    assert isinstance(mixer, Attention)
    assert mixer.heads == 2
    assert preprocessing.crop == Resize(filter="bilinear")
    assert preprocessing.normalize.mean == (0.5, 0.4, 0.3)
    plain = load(folder_of("open_clip", tmp_path / "b")[0]).bundle.preprocessing
    assert plain.crop == CenterCrop(fraction=1.0, filter="bicubic")
    assert plain.normalize.mean == (0.48145466, 0.4578275, 0.40821073)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("{", "weights.bad_config"),
        ("[]", "weights.bad_config"),
        ('{"model_cfg": {"vision_cfg": 3}}', "weights.bad_config"),
        ('{"model_cfg": {"vision_cfg": {"head_width": 4, "pool_type": "none"}}}', "weights.unsupported"),
        ('{"model_cfg": {"vision_cfg": {"head_width": 3}}}', "weights.bad_config"),
        ('{"model_cfg": {"vision_cfg": {"head_width": 4, "act_kwargs": {"x": 1}}}}', "weights.unsupported"),
        ('{"model_cfg": {"vision_cfg": {"head_width": 4}}, "preprocess_cfg": {"resize_mode": "longest"}}',
         "weights.unsupported"),
        ('{"model_cfg": {"vision_cfg": {"head_width": 4}}, "preprocess_cfg": {"mean": "x"}}', "weights.bad_config"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_followed_is_refused(tmp_path: Path, content: str, code: str) -> None:
    folder, _ = layout("open_clip", tmp_path / "a")
    (folder / "open_clip_config.json").write_text(content)
    with raises(code):
        load(folder)


TRUNKS = {
    "open_clip_siglip": ("attention", False),
    "open_clip_eva02": ("cls", True),  # timm's classifier is the projection
    "open_clip_timm_mean": ("mean", False),
}


@pytest.mark.parametrize("name", TRUNKS)
def test_a_tower_of_timm_answers_as_open_clip_does(tmp_path: Path, name: str) -> None:
    folder, found = folder_of(name, tmp_path / "a")
    opened = open_model(folder)
    model = vit(opened.loaded)
    assert (model.pool.kind, model.head) == (TRUNKS[name][0], ProjectionHead(width=6, bias=TRUNKS[name][1]))
    assert "ignored text.token_embedding.weight: belongs to the text tower" in opened.messages
    assert opened.loaded.bundle.preprocessing.image_size == model.image_size
    detected = OpenClipTimm().detect(read_checkpoint(folder))
    own = opened.loaded.model.state_dict()
    assert detected.rules is not None
    written = export_tensors(detected.rules(model, own), own)
    assert written.keys() == {name for name in found.weights if name.startswith("visual.")}
    assert all(torch.equal(tensor, found.weights[name]) for name, tensor in written.items())
    assert max(relative_errors(opened.loaded.model, found.answers)) <= 1e-6


def test_the_pool_of_a_tower_of_timm_is_asked_for_without_a_config(tmp_path: Path) -> None:
    folder, found = layout("open_clip_timm_mean", tmp_path / "a")
    with raises("weights.missing_setting", "pool=mean", "open_clip_config.json"):
        load(folder, settings={"mixer.heads": 2})
    model = load(folder, settings={"mixer.heads": 2, "pool": "mean"}).model
    assert max(relative_errors(model, found.answers)) <= 1e-6


def test_a_tensor_of_a_trunk_is_named_as_in_the_file(tmp_path: Path) -> None:
    folder, found = folder_of("open_clip_siglip", tmp_path / "a")
    weights = dict(found.weights)
    del weights["visual.trunk.norm.bias"]
    with raises("weights.missing_tensor", "visual.trunk.norm.bias"):
        load(put(folder, weights))
    extra = found.weights | {"visual.head.mlp.fc1.weight": torch.zeros(2, 2)}
    with raises("weights.unsupported", "visual.head.mlp.fc1.weight"):
        load(put(folder, extra))


@pytest.mark.parametrize("kind", [OpenClip(), OpenClipTimm()])
def test_a_tower_is_read_and_not_written(kind: Format) -> None:
    assert [words.partition(":")[0] for words in kind.unsupported(bundle_of())] == ["library"]
