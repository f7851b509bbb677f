"""Masked patches.  B images, N patches, M of them corrupted."""

from math import log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.errors import raises
from tests.models.variants import VITS, small
from vitral.core.config import Size, union_members
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import AttentionPool, Hybrid, Identity, MeanPool, Model, Patches, Resnet, Tokens, Vit
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches, PatchPrediction, TargetConfig, draw_corruption

TARGETS = pytest.mark.parametrize("target", union_members(TargetConfig), ids=lambda member: member.__name__)
PATCHED = {name: config for name, config in VITS.items() if isinstance(config.stem, Patches)}
LABELS = torch.zeros(3, dtype=torch.int64)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def task(model: Model, config: MaskedPatches = MaskedPatches()) -> PatchPrediction:  # noqa: B008 - it is frozen
    built = config.build(model, 0, (), CENTERED)
    assert isinstance(built, PatchPrediction)
    return built


def pictures(config: Vit, count: int = 3) -> Tensor:
    return CENTERED.apply(torch.randint(0, 256, (count, config.channels, *config.image_size), dtype=torch.uint8))


def patch_of(place: int) -> tuple[slice, slice]:
    """Rows and columns of a patch in the 4 x 6 grid of the small model."""
    row, column = divmod(place, 6)
    return slice(row * 8, row * 8 + 8), slice(column * 8, column * 8 + 8)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("config", PATCHED.values(), ids=PATCHED.keys())
def test_every_model_of_patches_learns_in_all_its_parts_but_pool_and_head(config: Vit) -> None:
    built = task(config.build())
    outcome = built(pictures(config), LABELS, rng())
    outcome.loss.backward()
    for name, weight in built.named_parameters():
        if name.startswith(("model.pool.", "model.head.")):
            assert not weight.requires_grad
        else:
            assert weight.grad is not None, name  # as DDP wants it
    learned = {name: bool(weight.grad.any()) for name, weight in built.named_parameters() if weight.grad is not None}
    for part in ("mask", "tell.weight", "model.stem.project.weight"):
        assert learned[part], part
    for layer in range(config.depth):
        assert any(moved for name, moved in learned.items() if name.startswith(f"model.blocks.{layer}."))


@pytest.mark.sampled(3)
@TARGETS
@pytest.mark.parametrize("fields", [{}, {"tokens": Tokens(cls=False), "pool": MeanPool()}], ids=["class", "no-class"])
def test_a_tiny_set_is_learned_by_heart(target: type[Any], fields: dict[str, Any]) -> None:
    model = small(image_size=Size(16, 16), **fields).build()
    built = task(model, MaskedPatches(target=target()))
    images = CENTERED.apply(torch.randint(0, 2, (4, 3, 2, 2), dtype=torch.uint8) * 255)  # patches of pure colors
    images = images.repeat_interleave(8, 2).repeat_interleave(8, 3)
    optimizer = torch.optim.AdamW(built.parameters(), lr=5e-3)
    losses: list[float] = []
    while len(losses) < 4 or (max(losses[-3:]) > 0.1 * losses[0] and len(losses) < 300):
        loss = built(images, LABELS, rng(len(losses) % 3)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert max(losses[-3:]) <= 0.1 * losses[0]


def lonely() -> Vit:
    """A model in which no patch sees another."""
    return small(mixer=Identity(), tokens=Tokens(cls=False), pool=MeanPool())


def test_the_first_loss_is_that_of_predictions_that_know_nothing() -> None:
    """The logarithm of the 512 colors, and half of what outputs of variance 0.02 ** 2 * 192 add to it."""
    torch.manual_seed(0)
    built, images = task(small(width=192).build()), torch.randn(16, 3, 32, 48)
    assert built(images, torch.zeros(16), rng()).loss.item() == pytest.approx(log(512) + 0.02**2 * 192 / 2, abs=0.03)


def test_a_step_equals_the_formula() -> None:
    """Oracle: brute force from appendix B.1.2, patch by patch, with the colors computed from pixels of the image.

    The encoder is this package's, which is compared with other libraries elsewhere; all weights get gradients.
    """
    torch.manual_seed(1)
    built, images = task(small().build()).double(), pictures(small()).double()
    with torch.no_grad():
        built.mask.normal_()
    loss = built(images, LABELS, rng(3)).loss
    learning = {name: weight for name, weight in built.named_parameters() if weight.requires_grad}
    grads = torch.autograd.grad(loss, list(learning.values()))
    expected = loss_by_patches(built, images, *draw_corruption(3, 24, rng(3)))
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-8)
    wanted = torch.autograd.grad(expected, list(learning.values()))
    for name, found, each in zip(learning, grads, wanted, strict=True):
        torch.testing.assert_close(found, each, rtol=0, atol=1e-8, msg=name)


def loss_by_patches(built: PatchPrediction, images: Tensor, places: Tensor, sources: Tensor, masked: Tensor) -> Tensor:
    model = built.model
    layout, embedded = model.layout(images), model.stem(images)
    given = [[built.mask if masked[b, n] else embedded[b, sources[b, n]] for n in range(24)] for b in range(3)]
    seen = torch.stack([torch.stack(row) for row in given])  # (B, N, D)
    tokens = model.encode(model.embed_patches(seen, layout), layout, layout.length())[:, -24:]
    total = torch.zeros((), dtype=torch.float64)
    for image, n in [(b, place) for b in range(3) for place in places[b].tolist()]:
        rows, columns = patch_of(n)
        patch = images[image, :, rows, columns]
        red, green, blue = ((channel.mean().item() * 0.5 + 0.5) * 255 // 32 for channel in patch)
        color = int(red * 64 + green * 8 + blue)
        total = total - (built.tell.weight @ tokens[image, n] + built.tell.bias).log_softmax(dim=0)[color]
    return total / places.numel()


def test_patches_that_are_not_corrupted_cost_nothing() -> None:
    built, images = task(lonely().build()), pictures(lonely(), 1)
    places, sources, _ = draw_corruption(1, 24, rng())
    free = set(range(24)) - set(places.flatten().tolist()) - set(sources.gather(1, places).flatten().tolist())
    assert free
    changed = images.clone()
    for place in free:
        rows, columns = patch_of(place)
        changed[:, :, rows, columns] = -changed[:, :, rows, columns]
    one, other = (built(each, LABELS[:1], rng()).loss for each in (images, changed))
    assert torch.equal(one, other)


@TARGETS
def test_every_corrupted_patch_is_told_masked_swapped_or_kept(target: type[Any]) -> None:
    built, images = task(lonely().build(), MaskedPatches(target=target())), pictures(lonely(), 1)
    places, sources, masked = draw_corruption(1, 24, rng(2))
    kinds = {True: "masked", False: "kept"}
    seen = set()
    before = built(images, LABELS[:1], rng(2)).loss
    for place in places.flatten().tolist():
        seen.add("swapped" if sources[0, place] != place else kinds[bool(masked[0, place])])
        rows, columns = patch_of(place)
        changed = images.clone()
        changed[:, :, rows, columns] = -changed[:, :, rows, columns]
        assert not torch.equal(built(changed, LABELS[:1], rng(2)).loss, before)
    assert seen == {"masked", "swapped", "kept"}


def test_a_masked_patch_is_not_seen() -> None:
    model = small().build()
    built, images = task(model), pictures(small(), 1)
    places, sources, masked = draw_corruption(1, 24, rng())
    taken = set(sources[~masked].tolist())
    hidden = next(place for place in places.flatten().tolist() if masked[0, place] and place not in taken)
    rows, columns = patch_of(hidden)
    changed = images.clone()
    changed[:, :, rows, columns] = -changed[:, :, rows, columns]
    seen: list[Tensor] = []
    built.tell.register_forward_hook(lambda _part, given, _told: seen.append(given[0]))
    for each in (images, changed):
        built(each, LABELS[:1], rng())
    assert torch.equal(*seen)


def test_the_corruption_is_that_of_the_dice() -> None:
    built, images = task(small().build()), pictures(small())
    one, same, other = (built(images, LABELS, rng(seed)).loss for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_in_evaluation_an_image_costs_the_same_in_any_company() -> None:
    built, images = task(small().build()).eval(), pictures(small())
    alone = [built(images[row : row + 1], LABELS[:1], rng(row)).loss for row in range(3)]
    torch.testing.assert_close(built(images, LABELS, rng()).loss, torch.stack(alone).mean())


def test_labels_are_not_looked_at() -> None:
    built, images = task(small().build()), pictures(small())
    assert torch.equal(built(images, LABELS, rng()).loss, built(images, LABELS - 1, rng()).loss)


def test_another_size_of_image_is_welcome() -> None:
    outcome = task(small().build())(pictures(small(image_size=Size(48, 24))), LABELS, rng())
    assert outcome.loss.isfinite()


def test_the_models_weights_serve_a_classifier_afterwards() -> None:
    built = task(small().build())
    built(pictures(small()), LABELS, rng()).loss.backward()
    classifier = small().build()
    classifier.load_weights(built.model.state_dict())
    assert all(weight.requires_grad for weight in classifier.parameters())
    own = {name for name in built.state_dict() if not name.startswith("model.")}
    assert own == {"mask", "tell.weight", "tell.bias"}


def test_an_attention_pool_is_frozen_with_the_head() -> None:
    built = task(small(pool=AttentionPool(heads=2)).build())
    assert not any(weight.requires_grad for weight in built.model.pool.parameters())


@pytest.mark.parametrize(
    ("config", "where", "found"),
    [
        (small(stem=Hybrid(layers=(1, 1), root=32)), "task", "hybrid"),
        (Resnet(layers=(1, 1), root=32, image_size=Size(32, 48)), "task", "ResNet"),
        (small(image_size=Size(8, 8)), "image_size", "one patch"),
        (small(channels=5), "target", "5 channels"),
    ],
)
def test_models_without_patches_to_tell_are_refused(config: Vit | Resnet, where: str, found: str) -> None:
    with raises("config.unsupported", found) as caught:
        task(config.build())
    assert caught.value.where == where


def test_an_image_of_one_patch_is_refused_when_it_comes() -> None:
    with raises("config.unsupported", "image_size", "one patch"):
        task(small().build())(torch.zeros(3, 3, 8, 8), LABELS, rng())
