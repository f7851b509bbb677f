"""Loading by path."""

import os
from pathlib import Path

import pytest
import torch

import vitral
from tests.errors import raises
from tests.models.variants import VARIANTS, small
from tests.training.states import identical
from tests.weights.bundles import bundle_of, tensors_of
from vitral.core.config import Size, parse_settings
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models import Mlp, Resnet, Rope2d, Vit
from vitral.weights.bundle import write_bundle
from vitral.weights.load import find_bundle as found
from vitral.weights.load import open_model

OLD_BUNDLE = Path(__file__).parent.parent / "fixtures/bundle_format_1"


def write(folder: Path, seed: int = 0) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_bundle(folder, bundle_of(), tensors_of(seed=seed), "")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_a_loaded_model_answers_as_the_one_that_was_written(tmp_path: Path, config: Vit | Resnet) -> None:
    model = config.build()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)  # the head is zero at the start
    write_bundle(tmp_path / "b", bundle_of(config), model.state_dict(), "")
    loaded, bundle = vitral.load(tmp_path / "b")
    images = torch.randn(2, config.channels, *config.image_size)
    assert bundle == bundle_of(config)
    assert not loaded.training
    assert all(weight.requires_grad for weight in loaded.parameters())
    with torch.inference_mode():
        assert torch.equal(loaded(images), model.eval()(images))


def test_a_loaded_model_can_be_trained_and_its_file_stays(tmp_path: Path) -> None:
    write(tmp_path / "b")
    before = (tmp_path / "b/model.safetensors").read_bytes()
    model = vitral.load(str(tmp_path / "b")).model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 3, 32, 48)).sum().backward()
    optimizer.step()
    assert (tmp_path / "b/model.safetensors").read_bytes() == before
    assert not identical({"": dict(model.state_dict())}, {"": tensors_of()})
    again = vitral.load(tmp_path / "b").model
    assert identical({"": dict(again.state_dict())}, {"": tensors_of()})


@pytest.mark.parametrize(
    ("bundles", "taken"), [(("best", "last"), "best"), (("last",), "last"), (("best",), "best"), (("",), "")]
)
def test_a_run_stands_for_its_best_and_else_its_last(tmp_path: Path, bundles: tuple[str, ...], taken: str) -> None:
    for seed, name in enumerate(bundles):
        write(tmp_path / "run" / name, seed)
    assert found(tmp_path / "run") == tmp_path / "run" / taken
    tensors = dict(vitral.load(tmp_path / "run").model.state_dict())
    assert identical({"": tensors}, {"": tensors_of(seed=bundles.index(taken))})


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_damaged_best_is_told_rather_than_passed_over(tmp_path: Path, file: str) -> None:
    for name in ("best", "last"):
        write(tmp_path / name)
    (tmp_path / "best" / file).unlink()
    with raises("weights.not_found", f"best/{file}"):
        vitral.load(tmp_path)


@pytest.mark.parametrize(("settings", "format"), [(("mixer.heads=3",), ""), ((), "timm")])
def test_a_bundle_takes_no_settings_and_no_format(tmp_path: Path, settings: tuple[str, ...], format: str) -> None:
    write(tmp_path / "b")
    with raises("config.conflict", tmp_path / "b", *settings):
        vitral.load(tmp_path / "b", settings=parse_settings([*settings]), format=format)


def test_a_best_whose_writer_was_killed_between_its_renames_is_found(tmp_path: Path) -> None:
    write(tmp_path / "best", 1)
    write(tmp_path / "last", 2)
    os.rename(tmp_path / "best", tmp_path / "best.tmp-old")
    tensors = dict(vitral.load(tmp_path).model.state_dict())
    assert identical({"": tensors}, {"": tensors_of(seed=1)})


def test_weights_of_a_run_that_diverged_are_refused_by_file(tmp_path: Path) -> None:
    tensors = tensors_of()
    tensors["norm.bias"][3] = float("nan")
    write_bundle(tmp_path / "b", bundle_of(), tensors, "")
    with raises("weights.not_finite", "norm.bias", 1, 8) as caught:
        vitral.load(tmp_path / "b")
    assert caught.value.where == f"{tmp_path}/b/model.safetensors"


def test_what_is_no_bundle_is_told_with_what_was_expected(tmp_path: Path) -> None:
    write(tmp_path / "b")
    for folder in ("photos/cat", "run/checkpoints/step-00000500"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("recipe.json", "environment.json"):
        (tmp_path / "run" / file).touch()
    (tmp_path / "weights.npz").touch()
    (tmp_path / "exported").mkdir()
    for file in ("export.json", "model.onnx"):
        (tmp_path / "exported" / file).touch()
    expected = {
        "none": ("weights.not_found", "best/"),
        "photos": ("weights.not_found", ".safetensors"),
        "weights.npz": ("weights.corrupt", ".npz"),
        "b/model.safetensors": ("weights.wrong_path", f": {tmp_path}/b"),
        "exported": ("weights.wrong_path", "vitral predict"),
        "exported/model.onnx": ("weights.wrong_path", f": {tmp_path}/exported"),
        "run": ("weights.no_bundle", f"vitral train --resume {tmp_path}/run"),
        "run/checkpoints/step-00000500": ("weights.wrong_path", f"{tmp_path}/run/best"),
    }
    for path, (code, value) in expected.items():
        with raises(code, value) as caught:
            vitral.load(tmp_path / path)
        assert caught.value.where == str(tmp_path / path)


@pytest.mark.parametrize(("size", "grids"), [((64, 96), ()), ((64, 104), ("4x6", "8x13")), ((8, 48), ("4x6", "1x6"))])
def test_positions_that_are_stretched_more_than_twofold_are_reported_with_both_grids(
    tmp_path: Path, size: tuple[int, int], grids: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    bundle = bundle_of(preprocessing=Preprocessing(image_size=Size(*size)))
    write_bundle(tmp_path / "b", bundle, tensors_of(), "")
    messages = open_model(tmp_path / "b").messages
    assert len(messages) == bool(grids)
    assert all(grid in messages[0] for grid in grids)
    rope = bundle_of(small(position=Rope2d(), width=8, depth=1, mlp=Mlp(ratio=1)), preprocessing=bundle.preprocessing)
    write_bundle(tmp_path / "rope", rope, tensors_of(rope.model), "")
    assert open_model(tmp_path / "rope").messages == ()
    with caplog.at_level("INFO", logger="vitral"):
        vitral.convert(str(tmp_path / "b"), str(tmp_path / "c"))
    assert caplog.messages == list(messages)


def test_converting_to_a_size_that_stretches_positions_more_than_twofold_says_so(tmp_path: Path) -> None:
    write(tmp_path / "b")
    twice, more = (
        vitral.convert(str(tmp_path / "b"), str(tmp_path / size), image_size=size).messages
        for size in ("64x96", "72x96")
    )
    assert len(twice) == 1
    assert [line for line in more if "stretched" in line and "4x6" in line and "9x12" in line] == [more[1]]


def test_the_activation_of_an_older_bundle_is_assumed_and_said(tmp_path: Path) -> None:
    model, bundle = vitral.load(OLD_BUNDLE)
    assert any("assumed" in line and "softmax" in line for line in open_model(OLD_BUNDLE).messages)
    write_bundle(tmp_path / "new", bundle, model.state_dict(), "a card")
    assert not any("assumed" in line for line in open_model(tmp_path / "new").messages)
