"""What is told of each layer is what the layer did: held against the formulas, written out."""

import pytest
import torch
from torch import Tensor

from tests.models.variants import VITS, small
from vitral.explanation.trace import summary_token, trace_image
from vitral.models import PostNorm, attention_maps
from vitral.models.base import Grid, Layout
from vitral.models.block import EncoderBlock


def image_for(name: str) -> Tensor:
    config = VITS[name]
    return torch.randn(1, config.channels, *config.image_size)  # (1, C, H, W)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", VITS)
def test_the_way_ends_where_the_model_ends(name: str) -> None:
    model, image = VITS[name].build().eval(), image_for(name)
    with torch.no_grad():
        found = trace_image(model, image)
        features = model.forward_features(image)
        torch.testing.assert_close(found.logits, model(image)[0])
    tokens = torch.cat([features.cls, features.registers, features.patches], dim=1)[0]  # (L, D)
    torch.testing.assert_close(found.last, tokens)
    assert len(found.layers) == model.config.depth
    assert found.tokens.shape == (found.layout.length(), model.config.width)


def test_lengths_are_those_of_the_formulas() -> None:
    """Eq. 2 and 3, written out once more."""
    model, image = small(depth=3).build().eval(), torch.randn(1, 3, 32, 48)
    with torch.no_grad():
        found = trace_image(model, image)
        layout = found.layout
        x = model.embed(image, layout)  # (1, L, D)
        for moved, block in zip(found.layers, model.blocks, strict=True):
            assert isinstance(block, EncoderBlock)
            gathered = block.mixer(block.mixer_norm(x), layout, layout.length())
            between = x + gathered
            thought = block.mlp(block.mlp_norm(between))
            after = between + thought
            expected = [part.norm(dim=-1).mean().item() for part in (x, gathered, thought, after)]
            assert list(moved[:4]) == pytest.approx(expected, rel=1e-5)
            assert moved.change == pytest.approx(((after - x).norm(dim=-1) / x.norm(dim=-1)).mean().item(), rel=1e-5)
            torch.testing.assert_close(moved.summary, after[0, 0])
            x = after


def test_the_attention_is_the_first_layers() -> None:
    model, image = small(depth=2).build().eval(), torch.randn(1, 3, 32, 48)
    torch.testing.assert_close(trace_image(model, image).attention, attention_maps(model, image)[0][0])


def test_a_mixer_without_attention_has_no_heads() -> None:
    name = "mixer-pooling"
    found = trace_image(VITS[name].build().eval(), image_for(name))
    assert found.attention.shape == (0, 24, 24)


def test_a_norm_after_the_sum_does_not_change_what_is_added() -> None:
    model, image = small(block=PostNorm()).build().eval(), torch.randn(1, 3, 32, 48)
    block = model.blocks[0]
    assert isinstance(block, EncoderBlock)
    with torch.no_grad():
        found = trace_image(model, image)
        gathered = block.mixer(found.tokens[None], found.layout, found.layout.length())
    assert found.layers[0].mixer == pytest.approx(gathered.norm(dim=-1).mean().item(), rel=1e-5)


def test_no_hook_stays_behind() -> None:
    model = small().build().eval()
    trace_image(model, torch.randn(1, 3, 32, 48))
    assert not any(part._forward_hooks for part in model.modules())


def test_what_stands_for_all_is_the_class_token_or_the_mean_of_the_patches() -> None:
    tokens = torch.arange(12.0).view(6, 2)
    assert summary_token(tokens, Layout(1, 1, Grid(2, 2))).tolist() == [0, 1]
    assert summary_token(tokens, Layout(0, 2, Grid(2, 2))).tolist() == [7, 8]
