"""Robustness of a model, end to end."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.evaluation.subjects import striped_model, subject, tools
from vitral.core.config import Size
from vitral.evaluation.evaluators import Evaluation
from vitral.evaluation.results import format_result
from vitral.evaluation.robustness import attacks
from vitral.evaluation.robustness.conditions import PARTS, list_conditions
from vitral.evaluation.robustness.corruption_error import ALEXNET, mean_corruption_error
from vitral.evaluation.robustness.corruptions import CORRUPTIONS
from vitral.evaluation.robustness.evaluator import RobustnessEvaluator, RobustnessResult, parse_parts


def evaluate(batch: int, **settings: object) -> RobustnessResult:
    found = RobustnessEvaluator.model_validate({"images": 6, "patch_steps": 2, **settings})
    whole = subject(means=tools(batch))
    found.check(whole)
    return found.evaluate(whole)


def test_every_part_has_its_curves_the_batch_changes_nothing_and_the_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = evaluate(4, page=str(page))
    assert {curve.part for curve in result.curves} == set(PARTS)
    assert [curve.name for curve in result.of("corruptions")] == list(CORRUPTIONS)
    for curve in result.curves:
        assert (curve.points[0].label, curve.points[0].top1) == ("unchanged", result.top1)
        assert all(0 <= point.top1 <= 1 for point in curve.points)
    assert evaluate(3).curves == result.curves
    assert result.corruptions is not None
    errors = [1 - np.mean([point.top1 for point in each.points[1:]]) for each in result.of("corruptions")]
    assert result.corruptions.mean_error == pytest.approx(np.mean(errors))
    assert (result.corruptions.constants, result.corruptions.mce) == ("cifar", None)
    text, shown = page.read_text(), "\n".join(format_result(result))
    for part in PARTS:
        assert f'id="{part}"' in text
        assert part in shown
    assert text.count('<svg class="chart') == len(PARTS)
    changed = len([each for part in PARTS for each in list_conditions(part, Size(16, 16))])
    assert text.count("data:image/png") > changed / 2


def test_mce_is_relative_to_the_model_of_the_reference(tmp_path: Path) -> None:
    own = evaluate(6, parts=("corruptions",))
    file = tmp_path / "other.json"
    whole = Evaluation(model="m", data="d", split="test", images=6, classes=3, seed=0, results=(own,), notes=())
    file.write_text(whole.to_json())
    again = evaluate(6, parts=("corruptions",), reference=str(file)).corruptions
    assert again is not None
    assert (again.mce, again.relative_to) == (1.0, str(file))
    doubled = {name: 2 * error for name, error in ALEXNET.items()}
    assert mean_corruption_error(doubled, ALEXNET) == pytest.approx(2)


def test_what_cannot_be_evaluated_is_refused_before_any_work(tmp_path: Path) -> None:
    for code, where, settings in (
        ("config.conflict", "--reference", {"reference": "alexnet"}),
        ("config.conflict", "--reference", {"reference": "alexnet", "parts": ("patch",)}),
        ("config.not_found", "no.json", {"reference": str(tmp_path / "no.json")}),
        ("config.not_found", "no/page.html", {"page": str(tmp_path / "no" / "page.html")}),
        ("config.missing_value", "--parts", {"parts": ()}),
    ):
        with raises(code, where):
            RobustnessEvaluator.model_validate(settings).check(subject())
    with raises("data.unknown_class", "cat"):
        RobustnessEvaluator().check(subject(striped_model(("ant", "bee", "dog"))))
    with raises("config.unknown_name", "occlusion"):
        parse_parts("oclusion")


def test_attacks_stay_within_epsilon_and_pgd_raises_the_loss_more_than_fgsm() -> None:
    torch.manual_seed(0)
    weight, labels = torch.randn(3 * 8 * 8, 4), torch.arange(8) % 4
    pixels, hidden = torch.rand(8, 3, 8, 8), torch.randn(4, 4)

    def forward(images: torch.Tensor) -> torch.Tensor:
        return (images.flatten(1) @ weight).tanh() @ hidden

    def loss(images: torch.Tensor) -> float:
        return float(attacks.loss_of(forward(images), labels, "softmax").mean())

    one = attacks.fgsm(forward, pixels, labels, 0.02, "softmax")
    many = attacks.pgd(forward, pixels, labels, 0.02, "softmax", torch.zeros_like(pixels))
    for found in (one, many):
        assert float((found - pixels).abs().max()) <= 0.02 + 1e-6
        assert 0 <= float(found.min()) <= float(found.max()) <= 1
    assert loss(pixels) < loss(one) <= loss(many) + 1e-6


def test_a_patch_is_pasted_at_the_place_of_each_image() -> None:
    pixels, patch = torch.zeros(2, 1, 4, 5), torch.full((1, 2, 2), 0.5)
    found = attacks.paste(pixels, patch, torch.tensor([[0, 1], [2, 3]]))
    assert [found[0, 0, :2, 1:3].sum(), found[1, 0, 2:, 3:].sum(), found.sum()] == [2, 2, 4]
