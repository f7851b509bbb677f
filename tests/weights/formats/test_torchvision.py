"""torchvision's Vision Transformers."""

from pathlib import Path

import pytest
import torch

from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.files import TOLERANCE, differences, fixture, put, rewritten, unlike
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import IMAGENET
from vitral.models import LinearHead, TanhHead
from vitral.weights.formats.torchvision import Torchvision
from vitral.weights.load import load

FIXTURES = ("torchvision_vit", "torchvision_vit_tanh")
HEADS = {"mixer.heads": 3}


@pytest.mark.parametrize("name", FIXTURES)
def test_it_answers_as_torchvision_does(tmp_path: Path, name: str) -> None:
    folder, found = fixture(name, tmp_path / "a")
    loaded = load(folder, settings=HEADS)
    assert max(differences(loaded.model, found.answers)) <= TOLERANCE
    written = rewritten(loaded, Torchvision(), tmp_path / "b")
    assert written.keys() == found.weights.keys()
    assert all(torch.equal(tensor, found.weights[key]) for key, tensor in written.items())


def test_what_is_known_of_the_family_comes_with_it(tmp_path: Path) -> None:
    model, bundle = load(fixture("torchvision_vit", tmp_path / "a")[0], settings=HEADS)
    assert bundle.preprocessing.normalize == IMAGENET
    assert bundle.preprocessing.crop.kind == "center"
    assert bundle.preprocessing.image_size == Size(32, 32)
    assert bundle.classes == ("0", "1", "2", "3", "4")
    assert isinstance(model.config.head, LinearHead)
    tanh = load(fixture("torchvision_vit_tanh", tmp_path / "b")[0], settings=HEADS)
    assert tanh.bundle.model.head == TanhHead(num_classes=5, hidden=20)


def test_names_before_version_0_13_are_read(tmp_path: Path) -> None:
    found = reference("torchvision_vit")
    older = {name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): tensor
             for name, tensor in found.weights.items()}  # fmt: skip
    assert older.keys() != found.weights.keys()
    assert max(differences(load(put(tmp_path / "a", older), settings=HEADS).model, found.answers)) <= TOLERANCE


def test_a_backbone_without_its_head_gives_features(tmp_path: Path) -> None:
    weights = {name: each for name, each in reference("torchvision_vit").weights.items() if "heads" not in name}
    assert load(put(tmp_path / "a", weights), settings=HEADS).bundle.task == "features"


def test_heads_of_a_width_that_was_not_published_are_asked_for(tmp_path: Path) -> None:
    folder, _ = fixture("torchvision_vit", tmp_path / "a")
    with raises("weights.missing_setting", 36, "--set mixer.heads=N"):
        load(folder)


@pytest.mark.parametrize("name", ["conv_proj.bias", "encoder.layers.encoder_layer_1.ln_2.weight", "class_token"])
def test_a_tensor_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    weights = reference("torchvision_vit").weights
    del weights[name]
    with raises("weights.missing_tensor", name):
        load(put(tmp_path / "a", weights), settings=HEADS, format="torchvision")


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("channels=1", "channels"),
        ("image_size=32x64", "image_size"),
        ("tokens.registers=2", "tokens.registers"),
        ("position=sincos2d", "position"),
        ("position.cls=false", "position.cls"),
        ("block=post", "block"),
        ("block.scale=layer_scale", "block.scale"),
        ("mixer=axial", "mixer"),
        ("mixer.qkv_bias=false", "mixer.qkv_bias"),
        ("mixer.head_width=7", "mixer"),
        ("mlp=swiglu", "mlp"),
        ("mlp.activation=gelu_tanh", "mlp.activation"),
        ("pool=mean", "pool"),
        ("head=none", "head"),
        ("eps=1e-5", "eps"),
        ("stem.norm=both", "stem.norm"),
    ],
)
def test_a_part_without_counterpart_is_named(setting: str, field: str) -> None:
    assert not unlike(Torchvision())
    assert unlike(Torchvision(), setting) == [field]
