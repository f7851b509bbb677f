"""Attention followed through the layers."""

from collections.abc import Sequence
from functools import reduce

import pytest
import torch
from torch import Tensor

from tests.explanation.by_hand import awake, images_for
from tests.models.variants import VARIANTS, VITS, small
from vitral.explanation.analysis import analyze
from vitral.explanation.relevance import extend_rollout, identity_rollout
from vitral.models import Attention, Model, VisionTransformer, attention_maps
from vitral.models.attention import BaseAttention
from vitral.models.pool import AttentionPooling

ATTENDING = [name for name, config in VITS.items() if isinstance(config.mixer, BaseAttention)]


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """The rollout (B, T, T) of the attention (B, H, T, T) of all layers."""
    return reduce(extend_rollout, layers, identity_rollout(layers[0].shape[-1], layers[0]))


def rollout_maps(model: Model, images: Tensor) -> Tensor:
    """How much of each patch reaches the output (B, R, S)."""
    return torch.stack([torch.from_numpy(analyze(model, image[None]).maps["rollout"]) for image in images])


def test_the_rollout_of_identity_is_the_identity() -> None:
    itself = torch.eye(7).expand(2, 3, -1, -1)
    assert rollout([itself] * 5).equal(torch.eye(7).expand(2, -1, -1))


def test_one_layer_is_half_its_mean_and_half_itself() -> None:
    attention = torch.tensor([[[[0.5, 0.5], [1.0, 0.0]], [[0.1, 0.9], [0.4, 0.6]]]])  # (1, 2, 2, 2)
    torch.testing.assert_close(rollout([attention]), torch.tensor([[[0.65, 0.35], [0.35, 0.65]]]))


def test_layers_follow_each_other_from_the_last_to_the_first() -> None:
    copies, stays = torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.eye(2)  # token 0 looks at token 1
    first, last = rollout([copies[None, None], stays[None, None]]), rollout([stays[None, None], copies[None, None]])
    assert first.equal(last)
    assert first[0].tolist() == [[0.5, 0.5], [0.0, 1.0]]
    swaps = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    found = rollout([copies[None, None], swaps[None, None]])  # what is mixed last mixes what was mixed first
    assert found[0].tolist() == [[0.25, 0.75], [0.25, 0.75]]
    assert rollout([swaps[None, None], copies[None, None]])[0].tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_rows_sum_to_one() -> None:
    layers = [torch.rand(2, 3, 9, 9).mul(5).softmax(dim=-1) for _ in range(12)]
    torch.testing.assert_close(rollout(layers).sum(dim=-1), torch.ones(2, 9))


def by_hand(model: VisionTransformer, images: Tensor) -> Tensor:
    """Every read token's path, from the maps of all layers: (B, R, S)."""
    layout = model.config.layout(model.config.image_size)
    joint = torch.eye(layout.length(), dtype=torch.float64)
    for attention in attention_maps(model, images):
        joint = (0.5 * attention.double().mean(dim=1) + 0.5 * torch.eye(layout.length())) @ joint
    patches = range(layout.prefix(), layout.length())
    match model.config.pool.kind:
        case "cls":
            read = [joint[:, 0]]
        case "distilled":
            read = [joint[:, 0], joint[:, 1]]
        case "mean":
            read = [joint[:, patch] for patch in patches]
        case "cls_mean":
            read = [joint[:, 0], torch.stack([joint[:, patch] for patch in patches]).mean(dim=0)]
        case "mean_all":
            read = [*joint.unbind(dim=1)]
        case "prefix":
            read = [joint[:, token] for token in range(layout.prefix())]
        case "attention":
            pool, features = model.pool, model.forward_features(images)
            assert isinstance(pool, AttentionPooling)
            tokens = torch.cat([features.cls, features.registers, features.patches], dim=1)
            looks = pool.attention_weights(pool.project_qkv(tokens), layout).double()  # (B, H, 1, T)
            read = [(looks[:, head] @ joint)[:, 0] for head in range(looks.shape[1])]
    return torch.stack(read).mean(dim=0)[:, layout.prefix() :].unflatten(1, layout.grid)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ATTENDING)
@torch.no_grad()
def test_the_map_shows_what_the_answer_reads(name: str) -> None:
    model, images = awake(VITS[name]), images_for(VITS[name])
    found = rollout_maps(model, images)
    torch.testing.assert_close(found, by_hand(model, images).float(), rtol=0, atol=1e-6)
    assert (found.sum(dim=(1, 2)) <= 1 + 1e-5).all()


@pytest.mark.parametrize("name", ["resnet", "mixer-identity"])
def test_a_model_whose_layers_do_not_attend_has_no_map(name: str) -> None:
    assert analyze(VARIANTS[name].build(), torch.randn(1, 3, 32, 48)).maps == {}


def test_dropout_is_off_and_training_goes_on_afterwards() -> None:
    model, images = awake(small(mixer=Attention(heads=2, dropout=0.5))).train(), images_for(small())
    assert rollout_maps(model, images).equal(rollout_maps(model, images))
    assert all(part.training for part in model.modules())
