"""labml's annotated ViT: ReLU in the MLP and the head, positions of a fixed length."""

from pathlib import Path

import pytest
import torch

from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.files import layout, put, relative_errors, rewritten, unlike, vit, written_back
from vitral.core.config import parse_settings
from vitral.models import Learned1d, Mlp, TanhHead
from vitral.weights.formats.labml import Labml
from vitral.weights.load import load, open_model

SETTINGS = ("mixer.heads=2", "image_size=12")
POSITIONS = "pos_emb.positional_encodings"


def test_it_answers_as_labml_does(tmp_path: Path) -> None:
    folder, found = layout("labml", tmp_path / "a")
    loaded = load(folder, settings=parse_settings([*SETTINGS]))
    written = written_back(loaded, Labml())
    assert written.keys() == found.weights.keys()
    assert torch.equal(written.pop(POSITIONS), found.weights[POSITIONS][:10])
    assert all(torch.equal(tensor, found.weights[name]) for name, tensor in written.items())
    rewritten(loaded, Labml(), tmp_path / "b")
    model = vit(loaded)
    assert isinstance(model.mlp, Mlp)
    assert (model.mlp.activation, model.position) == ("relu", Learned1d(resampling="slice"))
    assert model.head == TanhHead(num_classes=5, hidden=6, activation="relu")
    assert max(relative_errors(loaded.model, found.answers)) <= 1e-12


def test_all_that_a_file_does_not_record_is_asked_for_at_once(tmp_path: Path) -> None:
    with raises("weights.missing_setting", "mixer.heads=N", "image_size=HEIGHTxWIDTH"):
        load(layout("labml", tmp_path / "a")[0])


def test_what_is_assumed_and_left_out_is_said(tmp_path: Path) -> None:
    lines = open_model(layout("labml", tmp_path / "a")[0], *SETTINGS).messages
    assert any("ReLU" in line for line in lines)
    assert any("images of at most 12x12: the last 10 positions" in line for line in lines)


def test_an_image_that_needs_more_positions_is_refused(tmp_path: Path) -> None:
    with raises("weights.bad_setting", 26, 20, POSITIONS):
        load(layout("labml", tmp_path / "a")[0], settings={"mixer.heads": 2, "image_size": 20})
    model = load(layout("labml", tmp_path / "b")[0], settings=parse_settings([*SETTINGS])).model
    with raises("config.size_mismatch", "4x4", 9):
        model(torch.zeros(1, 3, 16, 16))


def test_a_gated_mlp_is_refused(tmp_path: Path) -> None:
    name = "transformer_layers.0.feed_forward.linear_v.weight"
    weights = reference("layouts/labml").weights | {name: torch.zeros(16, 8)}
    with raises("weights.unsupported", name):
        load(put(tmp_path / "a", weights), settings=parse_settings([*SETTINGS]))


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        (("mlp.activation=relu", "eps=1e-5"), ["head"]),
        (("head=tanh", "head.activation=relu", "head.num_classes=4", "eps=1e-5"), ["mlp.activation"]),
        (
            ("head=tanh", "head.num_classes=4", "mlp.activation=relu", "pool=mean", "eps=1e-5"),
            ["pool", "head.activation"],
        ),
    ],
)
def test_what_labml_cannot_hold_is_named(settings: tuple[str, ...], fields: list[str]) -> None:
    assert unlike(Labml(), *settings) == fields
