"""Averages of weights."""

import pytest
import torch
from torch import Tensor

from tests.errors import raises
from tests.models.variants import small
from tests.weights.bundles import TINY, bundle_of, square, tensors_of
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models import Attention, LinearHead, PreNorm
from vitral.weights.bundle import Bundle
from vitral.weights.soup import check_mergeable, find_differences, greedy_soup, interpolate_weights, mean_weights


def same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        tensor.dtype == torch.float32 and torch.equal(tensor.view(torch.int32), second[name].view(torch.int32))
        for name, tensor in first.items()
    )


def with_signed_zeros(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same with a -0 in each tensor, which a sum with +0 would lose."""
    for tensor in weights.values():
        tensor.view(-1)[0] = -0.0
    return weights


@pytest.mark.parametrize("count", [2, 3, 7])
def test_equal_weights_give_themselves(count: int) -> None:
    weights = with_signed_zeros(tensors_of())
    assert same_bits(mean_weights([weights] * count), weights)
    assert same_bits(interpolate_weights(weights, weights, 0.3), weights)


@pytest.mark.parametrize("count", [2, 3])
def test_the_mean_is_that_of_float64(count: int) -> None:
    ingredients = [tensors_of(seed=seed) for seed in range(count)]
    found = mean_weights(ingredients)
    for name, tensor in found.items():
        expected = torch.stack([weights[name].double() for weights in ingredients]).mean(dim=0)
        assert torch.equal(tensor, expected.float())
    big, less = {"w": torch.tensor([1e8, 1.0])}, {"w": torch.tensor([-1e8, 1.0])}
    ones = {"w": torch.tensor([1.0, 1.0])}
    assert mean_weights([big, ones, less])["w"][0] == torch.tensor(1 / 3)  # 0 if added in float32


def test_the_ingredients_are_not_changed() -> None:
    first, second = tensors_of(seed=0), tensors_of(seed=1)
    mean_weights([first, second])
    interpolate_weights(first, second, 0.5)
    assert same_bits(first, tensors_of(seed=0))
    assert same_bits(second, tensors_of(seed=1))


def test_alpha_0_and_1_give_the_first_and_the_second_bit_for_bit() -> None:
    first, second = with_signed_zeros(tensors_of(seed=0)), tensors_of(seed=1)
    assert same_bits(interpolate_weights(first, second, 0.0), first)
    assert same_bits(interpolate_weights(second, first, 1.0), first)


def test_alpha_is_the_share_of_the_second() -> None:
    first, second = tensors_of(seed=0), tensors_of(seed=1)
    for name, tensor in interpolate_weights(first, second, 0.25).items():
        assert torch.equal(tensor, (0.75 * first[name].double() + 0.25 * second[name].double()).float())


def test_a_greedy_soup_adds_what_does_not_lower_the_accuracy_from_the_best_on() -> None:
    tried: list[tuple[int, ...]] = []
    scores = {(2, 0): 0.7, (2, 3): 0.8, (2, 3, 1): 0.9}

    def measure(chosen: tuple[int, ...]) -> float:
        tried.append(chosen)
        return scores[chosen]

    assert greedy_soup([0.75, 0.1, 0.8, 0.5], measure) == (2, 3, 1)  # equal is enough
    assert tried == [(2, 0), (2, 3), (2, 3, 1)]


def test_a_greedy_soup_of_what_only_harms_is_the_best_model() -> None:
    assert greedy_soup([0.5, 0.9, 0.5], lambda chosen: 0.89) == (1,)


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (bundle_of(TINY.model_copy(update={"width": 16})), "model.width"),
        (bundle_of(TINY.model_copy(update={"mixer": Attention(heads=2 * TINY.mixer.heads)})), "model.mixer.heads"),  # type: ignore[union-attr]
        (bundle_of(TINY.model_copy(update={"head": LinearHead(num_classes=3)})), "model.head.num_classes"),
        (bundle_of(classes=("dog", "cat", "Ünlü", "a|b")), "classes"),
        (bundle_of(preprocessing=Preprocessing(image_size=square(64))), "preprocessing.image_size"),
        (bundle_of(activation="sigmoid"), "activation"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_models_classes_and_preprocessing_are_refused_by_field(other: Bundle, field: str) -> None:
    with raises("weights.merge_mismatch", f"{field} ", "runs/a", "runs/c"):
        check_mergeable(["runs/a", "runs/b", "runs/c"], [bundle_of(), bundle_of(), other])


def test_what_matters_only_in_training_may_differ_and_is_noted() -> None:
    other = bundle_of(small(**(dict(TINY) | {"block": PreNorm(drop_path_rate=0.1)})))
    assert [(each.field, each.matters) for each in find_differences(bundle_of(), other)] == [
        ("model.block.drop_path_rate", False)
    ]
    (note,) = check_mergeable(["a", "b"], [bundle_of(), other])
    assert "drop_path_rate" in note
    assert check_mergeable(["a", "b"], [bundle_of(), bundle_of(source="elsewhere")]) == []
