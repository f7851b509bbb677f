"""Merged models, measured on real pictures."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitral
from tests.errors import raises
from tests.evaluation.subjects import Stripes, striped_model, stripes
from tests.runs.small import photos
from vitral.runs.merge import merge
from vitral.weights.bundle import read_bundle, write_bundle
from vitral.weights.load import LoadedModel

HEAD = "head.linear.weight"


def fitted() -> LoadedModel:
    """A model whose head was fitted to the test pictures by least squares."""
    loaded = striped_model()
    found = Stripes().load("test")
    images = torch.stack([loaded.bundle.transform(image) for image in found.images])  # (N, C, H, W)
    labels = torch.nn.functional.one_hot(torch.from_numpy(found.labels).long()).float()  # (N, K)
    with torch.no_grad():
        features = loaded.model.forward_pooled(images)  # (N, D)
        solution = torch.linalg.lstsq(features, labels - 1 / 3).solution  # (D, K)
        loaded.model.get_parameter(HEAD).copy_(solution.T)
        loaded.model.get_parameter("head.linear.bias").zero_()
    return loaded


def stored(folder: Path, name: str, loaded: LoadedModel, scale: float = 1.0) -> str:
    """A bundle of the model with a head of another scale: below 0 it is wrong wherever the model is right."""
    weights = dict(loaded.model.state_dict())
    weights[HEAD] = weights[HEAD] * scale
    write_bundle(folder / name, loaded.bundle, weights, "a card")
    return str(folder / name)


def test_a_greedy_soup_leaves_a_bad_model_out_and_is_no_worse_than_the_best(tmp_path: Path) -> None:
    model = fitted()
    names = [stored(tmp_path, name, model, scale) for name, scale in (("bad", -3.0), ("good", 1.0), ("better", 2.0))]
    found = merge(names, tmp_path / "soup", data=stripes(), greedy=True, cache=False)
    bad, good, better = found.ingredients
    assert (found.method, bad.share, good.share, better.share) == ("greedy", 0, 0.5, 0.5)
    assert found.measured is not None
    assert bad.accuracy is not None
    assert good.accuracy is not None
    assert bad.accuracy < good.accuracy <= found.measured.accuracy
    assert (found.measured.split, found.measured.images, found.measured.chosen) == ("test", 18, True)
    merged = read_bundle(tmp_path / "soup").tensors[HEAD]
    assert torch.equal(merged, (1.5 * model.model.get_parameter(HEAD).detach().double()).float())


def test_the_written_model_has_the_accuracy_that_its_card_and_source_state(tmp_path: Path) -> None:
    model = fitted()
    names = [stored(tmp_path, "bad", model, -3.0), stored(tmp_path, "good", model)]
    found = vitral.merge(names, tmp_path / "soup", data=stripes(), cache=False)
    again = vitral.evaluate(tmp_path / "soup", stripes(), cache=False).results[0]
    assert found.measured is not None
    assert again.accuracy.top1 == found.measured.accuracy  # type: ignore[union-attr]
    assert again.accuracy.ci95 == found.measured.ci95  # type: ignore[union-attr]
    assert not found.measured.chosen
    source, card = read_bundle(tmp_path / "soup").bundle.source, (tmp_path / "soup" / "README.md").read_text()
    shares = [each.accuracy for each in found.ingredients] + [found.measured.accuracy]
    assert None not in shares
    assert all(f"{share:.2%}" in text for share in shares for text in (source, card))
    assert all(name in source for name in names)


def test_alpha_goes_from_the_first_model_to_the_second(tmp_path: Path) -> None:
    names = [stored(tmp_path, "a", striped_model(seed=0)), stored(tmp_path, "b", striped_model(seed=1))]
    for alpha, expected in ((0.0, names[0]), (1.0, names[1])):
        out = tmp_path / f"alpha-{alpha}"
        found = merge(names, out, alpha=alpha)
        assert (found.method, found.measured) == ("interpolation", None)
        assert [each.share for each in found.ingredients] == [1 - alpha, alpha]
        assert (out / "model.safetensors").read_bytes() == Path(expected, "model.safetensors").read_bytes()


def test_a_merge_is_measured_on_the_validation_images_unless_told_otherwise(tmp_path: Path) -> None:
    model = striped_model(("bright", "dark"))
    names = [stored(tmp_path, "a", model), stored(tmp_path, "b", model)]
    data = str(photos(tmp_path / "photos", {"train": 2, "val": 3, "test": 1}))
    for split, expected in (("", ("val", 6)), ("test", ("test", 2))):
        found = merge(names, tmp_path / f"soup-{split}", data=data, split=split).measured
        assert found is not None
        assert (found.split, found.images) == expected


def test_without_data_a_note_says_that_nothing_was_measured(tmp_path: Path) -> None:
    names = [stored(tmp_path, "a", striped_model()), stored(tmp_path, "b", striped_model(seed=1))]
    found = merge(names, tmp_path / "deep" / "soup")
    assert len(found.notes) == 1
    assert [each.accuracy for each in found.ingredients] == [None, None]
    assert vitral.load(tmp_path / "deep" / "soup").bundle.classes == striped_model().bundle.classes


@pytest.mark.parametrize(
    ("count", "options", "code", "where"),
    [
        (1, {}, "config.missing_value", "models"),
        (2, {"greedy": True}, "config.missing_value", "greedy"),
        (2, {"split": "val"}, "config.missing_value", "split"),
        (3, {"alpha": 0.5}, "config.conflict", "alpha"),
        (2, {"alpha": 0.5, "greedy": True, "data": "sample"}, "config.conflict", "alpha"),
        (2, {"alpha": 1.5}, "config.out_of_range", "alpha"),
        (2, {"alpha": float("nan")}, "config.out_of_range", "alpha"),
    ],
)
def test_requests_that_cannot_succeed_are_refused_before_anything_is_read(
    count: int, options: dict[str, Any], code: str, where: str, tmp_path: Path
) -> None:
    with raises(code, where):
        merge(["nowhere"] * count, tmp_path / "soup", **options)


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    names = [stored(tmp_path, "a", striped_model()), stored(tmp_path, "b", striped_model())]
    with raises("config.path_exists", names[1]):
        merge([names[0], names[0]], names[1])


def test_models_that_do_not_fit_leave_nothing_behind(tmp_path: Path) -> None:
    names = [stored(tmp_path, "a", striped_model()), stored(tmp_path, "b", striped_model(width=32))]
    with raises("weights.merge_mismatch", "model.width", *names):
        merge(names, tmp_path / "soup")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_features_alone_are_merged_but_have_no_accuracy(tmp_path: Path) -> None:
    names = [stored_features(tmp_path, name) for name in ("a", "b")]
    with raises("config.unsupported"):
        merge(names, tmp_path / "soup", data=stripes())
    assert merge(names, tmp_path / "soup").measured is None


def stored_features(folder: Path, name: str) -> str:
    model, bundle = striped_model(())
    write_bundle(folder / name, bundle, model.state_dict(), "a card")
    return str(folder / name)
