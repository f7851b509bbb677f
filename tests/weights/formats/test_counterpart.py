"""What is no reason to refuse a conversion: zeros for parts that a model lacks, and the eps of another library."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitral
from tests.models.variants import small
from tests.weights.bundles import loaded
from tests.weights.formats.files import vit
from vitral.core.config import Size, override
from vitral.models import Attention, Hybrid, Learned1d, LinearHead, Mlp, Patches, Vit
from vitral.weights.certificate import Certificate
from vitral.weights.convert import Origin, fit_format, select_format, write_model
from vitral.weights.formats.counterpart import nearest_model, nearest_value
from vitral.weights.formats.google import BigVision, Google
from vitral.weights.formats.labml import Labml
from vitral.weights.formats.timm import Timm
from vitral.weights.formats.torchvision import Torchvision
from vitral.weights.load import LoadedModel

SQUARE, TANH, ERF = Size(32, 32), Mlp(activation="gelu_tanh"), Mlp(activation="gelu")
UNBIASED: dict[str, Any] = {
    "stem": Patches(patch=Size(8, 8), bias=False),
    "mixer": Attention(heads=2, qkv_bias=False, project_bias=False),
    "mlp": Mlp(activation="gelu", bias=False),
}


def written(model: LoadedModel, folder: Path, to: str) -> Certificate:
    (folder / "file").write_bytes(b"")
    return write_model(model, Origin(folder / "file"), folder / "out", to)


@pytest.mark.parametrize(
    ("to", "model"),
    [
        ("torchvision", small(image_size=SQUARE, mlp=ERF, eps=1e-12)),
        ("timm", small(mlp=ERF, eps=1e-12)),
        ("google", small(mlp=TANH, eps=1e-12)),
        ("google", small(mlp=TANH, position=Learned1d(cls=False), eps=1e-12)),
    ],
    ids=["torchvision", "timm", "google", "big_vision"],
)
def test_another_eps_is_named_with_both_values_and_what_it_does_to_the_outputs(
    to: str, model: Vit, tmp_path: Path
) -> None:
    found = written(loaded(model), tmp_path, to)
    assert len(found.changed) == 1
    assert found.changed[0].startswith("eps 1e-12 became 1e-06, as ")
    assert found.changed[0].endswith(found.again.describe())
    assert 0 < found.again.largest < 1e-4
    assert found.tensors == ()


def test_an_eps_that_moves_the_outputs_is_no_reason_to_refuse_either(tmp_path: Path) -> None:
    """Tokens of almost no variance, on which the eps tells; tensors are still compared to the bit."""
    model = loaded(small(image_size=SQUARE, mlp=ERF, eps=1e-12))
    with torch.no_grad():
        for name in ("stem.project.weight", "stem.project.bias", "position.table", "prefix.tokens"):
            model.model.state_dict()[name].mul_(1e-3)
    found = written(model, tmp_path, "torchvision")
    assert found.again.largest > 1e-3
    assert found.again.describe() in found.changed[0]


def test_an_eps_that_is_no_guard_is_refused() -> None:
    assert [nearest_value("eps", value, (1e-6,)) for value in (1e-12, 1e-5, 1e-3)] == [1e-6, 1e-6, 1e-3]
    assert nearest_value("eps", 1e-6, (1e-12, 1e-5)) == 1e-5  # by the ratio
    assert nearest_value("stem.standardization", "std", ("variance",)) == "variance"
    assert nearest_value("mixer.heads", 2, (3,)) == 2


@pytest.mark.parametrize("format", [Google(), BigVision(), Torchvision(), Labml(), Timm()], ids=lambda each: each.name)
def test_no_format_with_an_eps_of_its_own_refuses_the_eps_of_another(format: Any) -> None:
    for eps in (1e-12, 1e-6, 1e-5):
        near = format.nearest(small(mlp=ERF, image_size=SQUARE, eps=eps))
        faults = format.unsupported(loaded(near).bundle)
        assert not [fault for fault in faults if fault.startswith("eps")]


def test_a_class_token_without_a_position_gets_a_row_of_zeros_where_google_needs_one(tmp_path: Path) -> None:
    stem = Hybrid(
        layers=(), root=32, patch=Size(2, 2)
    )  # which big_vision, where such a token has no row, does not have
    model = loaded(small(mlp=TANH, stem=stem, position=Learned1d(cls=False)))
    found = written(model, tmp_path, "google")
    assert found.written.software == "google"
    assert found.again.largest == 0  # bit for bit: what is added is zero
    (table,) = found.tensors
    assert table.describe() == "position.table: shape (1, 24, 32) became (1, 25, 32)"
    again = vitral.load(tmp_path / "out", settings={"image_size": "32x48"})
    position = vit(again).position
    assert isinstance(position, Learned1d)
    assert position.cls
    rows = again.model.state_dict()["position.table"]
    assert not rows[:, 0].any()
    assert torch.equal(rows[:, 1:], model.model.state_dict()["position.table"])


def test_big_vision_keeps_a_class_token_without_a_position_as_it_is(tmp_path: Path) -> None:
    model = loaded(small(mlp=TANH, position=Learned1d(cls=False)))
    assert select_format(model, "google").name == "big_vision"
    assert written(model, tmp_path, "google").changed == ()


def test_a_model_without_a_class_token_gets_no_row(tmp_path: Path) -> None:
    """Google's code adds one row to each token: N + 1 rows would be an error there."""
    model = loaded(override(small(mlp=TANH), ["tokens.cls=false", "pool=mean", "position.cls=false"]))
    found = written(model, tmp_path, "google")
    assert (found.written.software, found.changed) == ("google", ())


@pytest.mark.parametrize("to", ["timm", "huggingface", "torchvision"])
def test_biases_that_a_model_lacks_are_written_as_zeros(to: str, tmp_path: Path) -> None:
    model = loaded(small(image_size=SQUARE, **UNBIASED))
    found = written(model, tmp_path, to)
    assert found.again.largest < 1e-6
    new = {change.name for change in found.tensors}
    assert "stem.project.bias" in new
    assert all(change.shape.startswith("new, ") for change in found.tensors)
    settings = {"image_size": 32, "mixer.heads": 2} if to == "torchvision" else {}
    after = vitral.load(tmp_path / "out", settings=settings).model.state_dict()
    assert new == after.keys() - model.model.state_dict().keys()
    assert not any(after[name].any() for name in new)


@pytest.mark.parametrize(
    ("to", "stem"),
    [
        ("google", Hybrid(layers=(), root=64, patch=Size(2, 2), standardization="variance", group_eps=1e-5)),
        ("timm", Hybrid(layers=(), root=64, patch=Size(2, 2))),
    ],
)
def test_a_hybrid_goes_to_the_library_that_standardizes_its_kernels_in_another_way(
    to: str, stem: Hybrid, tmp_path: Path
) -> None:
    model = loaded(small(mlp=TANH, stem=stem, head=LinearHead(num_classes=4)))
    found = written(model, tmp_path, to)
    assert all(name in found.changed[0] for name in ("stem.standardization", "stem.group_eps"))
    assert found.tensors == ()
    assert 0 < found.again.largest < 1e-3


def test_a_model_that_a_format_holds_is_left_as_it_is() -> None:
    model = loaded(small(mlp=TANH))
    assert fit_format(model, Google()).loaded is model
    assert nearest_model(small(), Google.supported) is not None
    near = nearest_model(small(eps=1e-3, mlp=ERF), Google.supported)
    assert near == small(eps=1e-3, mlp=ERF)  # neither a larger eps nor another GELU is a detail
