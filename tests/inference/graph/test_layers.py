"""Folded weights do in one step what took several."""

import torch
from torch import nn

from vitral.core.config import Size
from vitral.data.transforms.preprocessing import IMAGENET
from vitral.inference.graph.layers import (
    affine,
    channels_last,
    fold_layer_scale,
    fold_norm,
    fold_normalization,
    scale_norm,
    split_qkv,
)
from vitral.models import Attention
from vitral.models.attention import SelfAttention
from vitral.models.base import BuildContext, Grid, Layout
from vitral.models.block import ChannelScale
from vitral.models.embed import cut_patches
from vitral.models.position import AttentionPosition


def test_a_map_from_bytes_is_the_scaling_and_then_the_map() -> None:
    patch, linear = Size(4, 2), nn.Linear(24, 5)
    images = torch.randint(0, 256, (2, 3, 8, 6), dtype=torch.uint8)
    found = fold_normalization(linear, IMAGENET, 3, patch)
    by_pixel = images.permute(0, 2, 3, 1)  # (B, H, W, C)
    tiles = by_pixel.unflatten(2, (3, 2)).unflatten(1, (2, 4)).transpose(2, 3).flatten(3).flatten(1, 2)
    expected = linear(cut_patches(IMAGENET.apply(images), patch))
    assert torch.allclose(tiles.float() @ found.weight.T + found.bias, expected, atol=1e-5)


def test_channels_come_last_in_the_order_of_memory() -> None:
    image = torch.arange(3 * 2 * 4).view(3, 2, 4)  # (C, P, Q)
    assert torch.equal(channels_last(image.flatten(), 3, Size(2, 4)), image.permute(1, 2, 0).flatten())


def test_a_layer_takes_in_the_factors_after_it() -> None:
    linear, scale, x = nn.Linear(3, 4), ChannelScale(4, 1.0), torch.randn(2, 3)
    nn.init.normal_(scale.factor)
    assert torch.allclose(fold_layer_scale(linear, scale).to_linear()(x), scale(linear(x)), atol=1e-6)
    assert torch.equal(fold_layer_scale(linear, nn.Identity()).to_linear()(x), linear(x))


def test_a_layer_takes_in_the_weights_of_the_norm_before_it() -> None:
    norm, linear, x = nn.LayerNorm(6, eps=0.1), nn.Linear(6, 4, bias=False), torch.randn(2, 6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    plain = nn.LayerNorm(6, eps=0.1, elementwise_affine=False)
    assert torch.allclose(fold_norm(norm, linear).to_linear()(plain(x)), linear(norm(x)), atol=1e-6)


def test_a_norm_gives_so_many_times_as_much() -> None:
    norm, x = nn.LayerNorm(6, eps=0.1), torch.randn(2, 6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    assert torch.allclose(scale_norm(norm, 0.3)(x), 0.3 * norm(x), atol=1e-6)


def test_queries_are_scaled_by_the_layer_or_left_to_their_norm() -> None:
    whole, x = BuildContext(12, 1, Layout(1, 0, Grid(2, 2)), 1e-6, 3), torch.randn(5, 12)
    for normed, scale in ((False, 4**-0.5), (True, 1.0)):
        heads = SelfAttention(Attention(heads=3, qk_norm=normed), whole, 0, AttentionPosition()).heads
        q, k, v = heads.qkv(x).chunk(3, dim=-1)
        found = [part.to_linear()(x) for part in split_qkv(heads)]
        for one, other in zip(found, (q * scale, k, v), strict=True):
            assert torch.allclose(one, other, atol=1e-6)


def test_a_layer_without_a_bias_has_one_of_zeros() -> None:
    assert not affine(nn.Linear(3, 4, bias=False)).bias.any()
