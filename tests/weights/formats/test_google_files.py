"""Writing Google's .npz files, and what they have no place for."""

from pathlib import Path

import numpy as np
import pytest
import torch

import vitral
from tests.models.references import FOLDER
from tests.weights.bundles import bundle_of
from tests.weights.formats.files import rewritten, unlike
from vitral.core.config import override, parse_settings
from vitral.data.transforms.preprocessing import IMAGENET, Normalize, Preprocessing
from vitral.models.registry import model_config
from vitral.weights.convert import Origin, select_format, write_model
from vitral.weights.formats.google import BigVision, Google
from vitral.weights.formats.npz import read_npz

ORIGINALS = ("google_vit", "google_tanh", "google_gap", "google_hybrid", "google_root")
NEWER = ("big_vision_cls", "big_vision_map", "big_vision_sines")
LIKE = ("mlp.activation=gelu_tanh",)  # the small model of the tests has erf


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*ORIGINALS, *NEWER])
def test_a_round_trip_gives_the_same_bits_by_the_same_names(name: str, tmp_path: Path) -> None:
    loaded = vitral.load(
        FOLDER / f"{name}.npz", settings=parse_settings([*(["image_size=16"] if name == "big_vision_sines" else [])])
    )
    kind = select_format(loaded, "google")
    assert kind.name == ("google" if name in ORIGINALS else "big_vision")
    tensors, before = rewritten(loaded, kind, tmp_path / "again"), read_npz(FOLDER / f"{name}.npz")
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["model.npz"]
    assert tensors.keys() == before.keys()
    assert all(torch.equal(tensor, before[key]) for key, tensor in tensors.items())
    with np.load(tmp_path / "again/model.npz") as arrays:
        assert all(np.array_equal(arrays[key], tensor.numpy()) for key, tensor in before.items())


@pytest.mark.parametrize(
    ("settings", "field"),
    {
        ("mlp.activation=gelu",): "mlp.activation",
        ("mlp=swiglu",): "mlp",
        ("eps=1e-5",): "eps",
        ("block.scale=layer_scale",): "block.scale",
        ("block=post",): "block",
        ("tokens.registers=2",): "tokens.registers",
        ("tokens.norm=true",): "tokens.norm",
        ("mixer.qk_norm=true",): "mixer.qk_norm",
        ("mixer.qkv_bias=false",): "mixer.qkv_bias",
        ("mixer.head_width=8",): "mixer",
        ("mixer=axial", "mixer.heads=3"): "mixer",
        ("stem.norm=both",): "stem.norm",
        ("stem.bias=false",): "stem.bias",
        ("position=rope2d",): "position",
        ("position.where=layers",): "position.where",
        ("position.cls=false",): "position.cls",
        ("position=sincos2d",): "position",
        ("pool=cls_mean",): "pool",
    }.items(),
)
def test_what_has_no_counterpart_is_named_by_its_field(settings: tuple[str, ...], field: str) -> None:
    assert field in unlike(Google(), *LIKE, *settings)
    assert unlike(Google(), *LIKE) == []


def test_big_vision_holds_what_the_original_cannot() -> None:
    assert unlike(BigVision(), *LIKE, "position.cls=false") == []
    assert unlike(BigVision(), *LIKE, "position=sincos2d") == []
    assert unlike(BigVision(), *LIKE, "tokens.cls=false", "pool=attention") == []
    assert unlike(Google(), *LIKE, "tokens.cls=false", "pool=attention") == ["pool"]
    assert unlike(BigVision(), *LIKE) == ["position.cls"]
    assert unlike(BigVision(), *LIKE, "tokens.cls=false", "pool=attention", "pool.heads=2") == ["pool.heads"]
    assert unlike(BigVision(), *LIKE, "pool=mean", "position.cls=false") == ["tokens.cls"]


def test_a_hybrid_that_google_would_run_otherwise_is_not_written() -> None:
    hybrid = override(
        model_config("R26+S/32"), ["head.num_classes=4", "stem.standardization=variance", "stem.group_eps=1e-5"]
    )
    fields = [words.partition(":")[0] for words in Google().unsupported(bundle_of(hybrid))]
    assert fields == ["stem.standardization", "stem.group_eps"]
    assert "stem" in [words.partition(":")[0] for words in BigVision().unsupported(bundle_of(hybrid))]


def test_images_on_another_scale_are_not_written() -> None:
    model = override(model_config("S/16"), ["head.num_classes=4"])
    bundle = bundle_of(model, preprocessing=Preprocessing(normalize=IMAGENET))
    assert [words.partition(":")[0] for words in Google().unsupported(bundle)] == ["preprocessing.normalize"]


def test_a_certificate_says_that_what_reads_googles_files_is_not_installed(tmp_path: Path) -> None:
    source = FOLDER / "big_vision_map.npz"
    certificate = write_model(vitral.load(source), Origin(source), tmp_path / "out", "google")
    assert certificate.library == "none: timm is not installed"
    assert certificate.theirs is None
    assert certificate.again.tokens == 0
    assert certificate.again.logits == 0


def test_one_mean_for_all_channels_is_that_mean_for_each() -> None:
    model = override(model_config("S/16"), ["head.num_classes=4"])
    normalize = Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    bundle = bundle_of(model, preprocessing=Preprocessing(normalize=normalize))
    assert list(Google().unsupported(bundle)) == []
