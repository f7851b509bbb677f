"""The attention that is shown is the attention that was used."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from tests.errors import raises
from tests.models.variants import VITS, small
from vitral.models import (
    Attention,
    Axial,
    Identity,
    Local,
    MultiBranch,
    Relative2d,
    Rope2d,
    VisionTransformer,
    Vit,
    attention_maps,
)
from vitral.models.attention import SelfAttention
from vitral.models.hooks import record_attention

WITH_ATTENTION = {name: config for name, config in VITS.items() if config.mixer.kind in ("attention", "axial", "local")}


def awake(config: Vit) -> VisionTransformer:
    model = config.build()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def images(config: Vit) -> Tensor:
    return torch.randn(2, config.channels, *config.image_size)


def by_hand(model: VisionTransformer, pictures: Tensor) -> list[Tensor]:
    """The maps of a plain pre-norm model from its weights alone, in double precision."""
    weight = {name: tensor.detach().double() for name, tensor in model.state_dict().items()}

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weight[f"{name}.weight"].T + weight[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        centered = x - x.mean(dim=-1, keepdim=True)
        scaled = centered / (centered.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
        return scaled * weight[f"{name}.weight"] + weight[f"{name}.bias"]

    patches = nn.functional.unfold(pictures.double(), 8, stride=8).mT  # (B, N, 192)
    first = weight["prefix.tokens"].expand(len(pictures), -1, -1)
    x = torch.cat([first, linear(patches, "stem.project")], dim=1) + weight["position.table"][0]
    maps = []
    for layer in range(model.config.depth):
        at = f"blocks.{layer}"
        q, k, v = linear(norm(x, f"{at}.mixer_norm"), f"{at}.mixer.heads.qkv").split(32, dim=-1)
        scores = [q[..., part] @ k[..., part].mT / 4 for part in (slice(0, 16), slice(16, 32))]  # heads of 16
        seen = [score.exp() / score.exp().sum(dim=-1, keepdim=True) for score in scores]
        maps.append(torch.stack(seen, dim=1))
        mixed = torch.cat([seen[0] @ v[..., :16], seen[1] @ v[..., 16:]], dim=-1)
        x = x + linear(mixed, f"{at}.mixer.project")
        hidden = nn.functional.gelu(linear(norm(x, f"{at}.mlp_norm"), f"{at}.mlp.expand"), approximate="tanh")
        x = x + linear(hidden, f"{at}.mlp.contract")
    return maps


def test_the_maps_are_those_computed_by_hand_from_the_weights() -> None:
    config = small(depth=3)
    model, pictures = awake(config), images(config)
    found, expected = attention_maps(model, pictures), by_hand(model, pictures)
    assert len(found) == 3
    for one, other in zip(found, expected, strict=True):
        assert one.shape == (2, 2, 25, 25)
        torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-6)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_every_token_spends_its_whole_attention(name: str) -> None:
    config = WITH_ATTENTION[name]
    model = awake(config)
    maps = attention_maps(model, images(config))
    length = config.layout(config.image_size).length()
    assert len(maps) == config.depth
    branches = config.block.branches if isinstance(config.block, MultiBranch) else 1
    for layer in maps:
        assert layer.shape == (2, branches * config.mixer.model_dump()["heads"], length, length)
        assert (layer >= 0).all()
        torch.testing.assert_close(layer.sum(dim=-1), torch.ones(layer.shape[:-1]))


@pytest.mark.parametrize("mixer", [Attention(heads=2), Axial(heads=2), Local(heads=2, rows=2, columns=3)])
@torch.no_grad()
def test_the_values_weighted_by_the_maps_are_what_the_layer_gave(mixer: Attention | Axial | Local) -> None:
    config = small(mixer=mixer, position=Rope2d())
    model = awake(config)
    outputs: list[Tensor] = []
    layers = [part for part in model.modules() if isinstance(part, SelfAttention)]
    for layer in layers:
        layer.register_forward_hook(lambda _, given, output: outputs.append(output))
    with record_attention(model) as recordings:
        model.forward_features(images(config))
    assert [recording.layer for recording in recordings] == layers
    for recording, output in zip(recordings, outputs, strict=True):
        mixed = (recording.attention_weights() @ recording.heads.v).transpose(1, 2).flatten(2)
        torch.testing.assert_close(recording.layer.project(mixed), output, rtol=0, atol=1e-5)


@torch.no_grad()
def test_patches_of_other_windows_are_not_seen() -> None:
    config = small(mixer=Axial(heads=2))
    rows, columns = attention_maps(awake(config), images(config))[:2]
    for one, other in itertools.product(range(24), repeat=2):
        assert bool((rows[:, :, 1 + one, 1 + other] > 0).all()) == (one // 6 == other // 6)
        assert bool((columns[:, :, 1 + one, 1 + other] > 0).all()) == (one % 6 == other % 6)
    assert (rows[:, :, 0] > 0).all()
    assert (rows[:, :, :, 0] > 0).all()


def hooks_of(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


def test_no_hook_stays_behind() -> None:
    model = small().build()
    attention_maps(model, torch.randn(1, 3, 32, 48))
    assert hooks_of(model) == 0
    with record_attention(model) as recordings:
        assert hooks_of(model) == 2 * model.config.depth
        model.forward_features(torch.randn(1, 3, 32, 48))
    model.forward_features(torch.randn(1, 3, 32, 48))
    assert len(recordings) == model.config.depth


def test_no_hook_stays_behind_when_the_model_fails() -> None:
    model = small().build()
    with raises("config.channel_mismatch", "images", 3, 1):
        attention_maps(model, torch.randn(1, 1, 32, 48))
    model.blocks[-1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        attention_maps(model, torch.randn(1, 3, 32, 48))
    assert hooks_of(model) == 1


def test_looking_changes_neither_the_answer_nor_the_gradients() -> None:
    model, pictures = awake(small()), torch.randn(2, 3, 32, 48)
    before = model(pictures)
    maps = attention_maps(model, pictures)
    assert model(pictures).equal(before)
    assert not any(layer.requires_grad for layer in maps)
    assert all(weight.grad is None for weight in model.parameters())


def test_a_model_without_attention_is_refused() -> None:
    config = small(mixer=Identity(), tokens={"cls": False}, pool={"kind": "mean"})
    with raises("config.unsupported", "model", "mixer=attention"):
        attention_maps(config.build(), torch.randn(1, 3, 32, 48))


def test_the_class_token_alone_is_recorded_as_the_row_that_it_is() -> None:
    model, images = small(position=Relative2d()).build().eval(), torch.rand(1, 3, 32, 48)
    with torch.no_grad(), record_attention(model) as recordings:
        model(images)
    last = recordings[-1].attention_weights()
    assert last.shape == (1, 2, 1, 25)
    torch.testing.assert_close(last, attention_maps(model, images)[-1][:, :, :1])
