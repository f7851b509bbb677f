"""What speaks for a class: against autograd on attention written out, and where the answer is known beforehand."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.errors import raises
from tests.explanation.by_hand import awake, images_for
from tests.models.variants import VARIANTS, VITS, small
from vitral.core.config import Size
from vitral.explanation.relevance import relevance
from vitral.models import (
    Attention,
    AttentionPool,
    ClassMeanPool,
    ClassPool,
    DistilledPool,
    Layout,
    LinearHead,
    MeanAllPool,
    MeanPool,
    NoHead,
    NoPosition,
    Patches,
    Tokens,
    VisionTransformer,
    Vit,
)
from vitral.models.attention import BaseAttention, Qkv, SelfAttention
from vitral.models.pool import AttentionPooling

HEADED = [name for name, config in VITS.items() if not isinstance(config.head, NoHead)]
ATTENDING = [name for name in HEADED if isinstance(VITS[name].mixer, BaseAttention)]
TARGETS = [3, 1]
Pool = ClassPool | DistilledPool | MeanPool | ClassMeanPool | MeanAllPool | AttentionPool


def written_out(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Has every attention computed as softmax(q k') v, and collects the softmax with its gradient."""
    kept: list[Tensor] = []

    def gathered(weights: Tensor, v: Tensor) -> Tensor:
        weights.retain_grad()
        kept.append(weights)
        return (weights @ v).transpose(1, 2).flatten(2)

    def forward(self: SelfAttention, x: Tensor, layout: Layout, keep: int) -> Tensor:
        heads = self.heads(x, layout, keep)
        return self.project(self.output_norm(gathered(self.attention_weights(heads, layout), heads.v)))

    def gather(self: AttentionPooling, heads: Qkv, layout: Layout) -> Tensor:
        logits = heads.q @ heads.k.mT * heads.q.shape[-1] ** -0.5
        if self.patches_only:
            logits[..., : layout.prefix()] = float("-inf")
        return gathered(logits.softmax(dim=-1), heads.v)

    monkeypatch.setattr(SelfAttention, "forward", forward)
    monkeypatch.setattr(AttentionPooling, "attend", gather)
    return kept


def by_hand(model: VisionTransformer, images: Tensor, kept: list[Tensor]) -> Tensor:
    """The rule as a product of matrices, with the gradients that autograd gives the written out attention."""
    logits = model(images)
    made = tuple(kept)  # before the backward pass, in which a model may recompute
    logits[[0, 1], TARGETS].sum().backward()
    layout = model.config.layout(model.config.image_size)
    length, patches = layout.length(), slice(layout.prefix(), layout.length())
    supports = []
    for weights in made:
        assert weights.grad is not None
        supports.append((weights.grad * weights).relu().mean(dim=1).detach())  # (B, queries, T)
    shares = torch.zeros(2, length, dtype=torch.float64)
    match model.config.pool.kind:
        case "cls":
            shares[:, 0] = 1
        case "distilled":
            shares[:, :2] = 0.5
        case "mean":
            shares[:, patches] = 1 / layout.grid.cells()
        case "cls_mean":
            shares[:, 0], shares[:, patches] = 0.5, 0.5 / layout.grid.cells()
        case "mean_all":
            shares[:] = 1 / length
        case "prefix":
            shares[:, : layout.prefix()] = 1 / layout.prefix()
        case "attention":
            shares = supports.pop()[:, 0]
    if model.config.block.kind == "multi_branch":  # two attentions of a layer side by side
        supports = [one + other for one, other in zip(supports[::2], supports[1::2], strict=True)]
    joint = torch.eye(length, dtype=torch.float64).expand(2, -1, -1)
    for found in supports:
        whole = nn.functional.pad(found, (0, 0, 0, length - found.shape[1]))  # rows that nobody reads stay as they are
        joint = joint + whole @ joint
    traced = ((joint - torch.eye(length, dtype=torch.float64)) * shares[:, :, None]).sum(dim=1)
    return traced[:, patches].unflatten(1, layout.grid)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ATTENDING)
def test_the_gradient_is_that_of_attention_written_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = awake(VITS[name]).double(), images_for(VITS[name]).double()
    found = relevance(model, images, TARGETS)
    with monkeypatch.context() as patch:
        expected = by_hand(model, images, written_out(patch))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-14)
    assert (expected > 0).any()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", HEADED)
def test_every_model_tells_what_it_can(name: str) -> None:
    config = VITS[name]
    model, images = awake(config), images_for(config)
    found = relevance(model, images, TARGETS)
    grid = config.layout(config.image_size).grid if name in ATTENDING else (0, 0)
    assert found.shape == (2, *grid)
    assert found.isfinite().all()
    assert (found >= 0).all()
    assert not found.requires_grad


def two_patches(pool: Pool) -> VisionTransformer:
    """A model of two patches, by hand: a bright first pixel speaks for class 0, a bright second one for class 1.

    Every token gathers evenly from all, and the head reads the first two of four channels.
    """
    config = Vit(
        image_size=Size(2, 4),
        channels=1,
        width=4,
        depth=1,
        stem=Patches(patch=Size(2, 2)),
        tokens=Tokens(registers=1),
        position=NoPosition(),
        mixer=Attention(heads=1),
        pool=pool,
        head=LinearHead(num_classes=2),
    )
    model = config.build().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        model.stem.get_parameter("project.weight").copy_(torch.eye(4))
        mixer = model.blocks[0].get_submodule("mixer")
        mixer.get_parameter("heads.qkv.weight")[8:].copy_(torch.eye(4))
        mixer.get_parameter("project.weight").copy_(torch.eye(4))
        if isinstance(model.pool, AttentionPooling):
            model.pool.kv.weight[4:].copy_(torch.eye(4))
            model.pool.project.weight.copy_(torch.eye(4))
        head = model.head.get_parameter("linear.weight")
        for part in range(0, head.shape[1], 4):
            head[:, part : part + 2] = torch.eye(2)
    return model


@pytest.mark.parametrize(
    "pool",
    [ClassPool(), DistilledPool(), MeanPool(), ClassMeanPool(), MeanAllPool(), AttentionPool(heads=1)],
    ids=lambda pool: pool.kind,
)
def test_of_two_patches_the_one_that_tells_the_class_is_found(pool: Pool) -> None:
    model = two_patches(pool)
    images = torch.zeros(2, 1, 2, 4)
    images[0, 0, 0, 0] = images[0, 0, 0, 3] = 1  # on the left a bright first pixel, on the right a bright second one
    images[1, 0, 0, 1] = images[1, 0, 0, 2] = 1  # and the other way round
    for targets, sides in (([0, 0], [0, 1]), ([1, 1], [1, 0])):
        found = relevance(model, images, targets)[:, 0]  # (2, 2)
        for image, side in enumerate(sides):
            assert found[image, side] > 10 * found[image, 1 - side]


def test_images_do_not_disturb_each_other() -> None:
    model, images = awake(small(depth=3)), images_for(small(), 3)
    alone = [relevance(model, image[None], [target]) for image, target in zip(images, (2, 0, 2), strict=True)]
    torch.testing.assert_close(relevance(model, images, [2, 0, 2]), torch.cat(alone))


def test_the_weights_are_left_as_they_were() -> None:
    model = awake(small(mixer=Attention(heads=2, dropout=0.5))).train()
    images = images_for(small())
    model.stem.requires_grad_(False)
    flags = [weight.requires_grad for weight in model.parameters()]
    assert relevance(model, images, TARGETS).equal(relevance(model, images, TARGETS))
    model.blocks[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        relevance(model, images, TARGETS)
    assert [weight.requires_grad for weight in model.parameters()] == flags
    assert all(weight.grad is None for weight in model.parameters())
    assert all(part.training for part in model.modules())


def test_frozen_weights_and_inference_mode_change_nothing() -> None:
    model, images = awake(small()), images_for(small())
    expected = relevance(model, images, TARGETS)
    with torch.inference_mode():
        assert relevance(model, images, TARGETS).equal(expected)
    model.requires_grad_(False)
    assert relevance(model, images, TARGETS).equal(expected)
    assert not any(weight.requires_grad for weight in model.parameters())


def test_no_gradient_of_a_weight_is_computed() -> None:
    config = small(depth=6, width=128)
    model, images = awake(config), images_for(config)
    with torch.no_grad(), FlopCounterMode(display=False) as forward:
        model.forward_features(images)
    with FlopCounterMode(display=False) as both:
        relevance(model, images, TARGETS)
    assert both.get_total_flops() < 2.2 * forward.get_total_flops()


def test_a_model_without_tokens_or_attention_has_no_map() -> None:
    images = torch.randn(2, 3, 32, 48)
    assert relevance(VARIANTS["resnet"].build(), images, TARGETS).shape == (2, 0, 0)
    assert relevance(VARIANTS["mixer-pooling"].build(), images, TARGETS).shape == (2, 0, 0)


def test_classes_that_are_not_there_are_refused() -> None:
    model, images = small().build(), images_for(small())
    with raises("config.out_of_range", "target", 3, 4):
        relevance(model, images, [0, 4])
    with raises("config.wrong_count", "targets", 2, 1):
        relevance(model, images, [0])
    with raises("config.unsupported", "target"):
        relevance(small(head=NoHead()).build(), images, TARGETS)
