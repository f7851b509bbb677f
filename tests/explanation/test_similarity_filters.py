"""The components that are shown are those of the filters that pixels meet."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.variants import VARIANTS, small
from vitral.core.config import Size
from vitral.explanation.similarity import embedding_filters, first_kernel
from vitral.models import Hybrid, Patches, Resnet, VisionTransformer, Vit
from vitral.models.embed import PatchStem
from vitral.models.resnet import StdConv2d


def orthonormal(rows: int, columns: int) -> Tensor:
    """Columns of length 1, at right angles to each other and to a column of equal numbers."""
    given = torch.cat([torch.ones(rows, 1), torch.randn(rows, columns)], dim=1)
    return torch.linalg.qr(given.double()).Q[:, 1:]  # (rows, columns)


def stem_of(model: nn.Module) -> PatchStem:
    assert isinstance(model, VisionTransformer)
    assert isinstance(model.stem, PatchStem)
    return model.stem


def test_filters_made_from_a_basis_give_it_back_with_the_shares_of_its_variances() -> None:
    config = small(width=64, channels=3, stem=Patches(patch=Size(8, 4)))
    model = config.build()
    basis = orthonormal(8 * 4 * 3, 5).mT.unflatten(1, (8, 4, 3))  # (5, h, w, C)
    deviations = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    shared = torch.randn(8, 4, 3, dtype=torch.float64)
    pictures = torch.einsum("dk,k,khwc->dhwc", orthonormal(64, 5), deviations, basis) + shared  # (D, h, w, C)
    with torch.no_grad():
        stem_of(model).project.weight.copy_(pictures.permute(0, 3, 1, 2).flatten(1))
    found = embedding_filters(model)
    assert found.components.shape == (5, 8, 4, 3)
    turned = np.sign((found.components * basis.numpy()).sum(axis=(1, 2, 3), keepdims=True))
    np.testing.assert_allclose(found.components * turned, basis.numpy(), atol=1e-6)
    np.testing.assert_allclose(found.explained_variance, deviations.square() / 55, atol=1e-6)


@torch.no_grad()
def test_a_patch_that_looks_like_a_component_moves_the_tokens_by_its_share() -> None:
    model = small(stem=Patches(patch=Size(8, 4))).build()
    found = embedding_filters(model)
    pictures = torch.zeros(28, 3, 32, 48)
    pictures[:, :, 8:16, 20:24] = torch.from_numpy(found.components).permute(0, 3, 1, 2)
    moved = model.stem(pictures) - model.stem(torch.zeros(1, 3, 32, 48))  # (28, N, D)
    variances = moved[:, 12 + 5].var(dim=1)  # of the second row's sixth patch
    torch.testing.assert_close(
        variances / variances.sum(), torch.from_numpy(found.explained_variance / found.explained_variance.sum())
    )


@torch.no_grad()
def test_gains_before_the_filters_are_part_of_them() -> None:
    model = small(stem=Patches(patch=Size(8, 8), norm="both")).build()
    stem = stem_of(model)
    assert isinstance(stem.before, nn.LayerNorm)
    stem.before.weight.copy_(torch.rand(192) + 0.5)
    picture = torch.randn(1, 3, 8, 8)
    plain = (picture - picture.mean()) / picture.std(correction=0)
    seen = F.conv2d(plain, first_kernel(model)).flatten()  # (D,)
    torch.testing.assert_close(seen, stem.project(stem.before(picture.flatten())) - stem.project.bias)


CONVOLUTIONS: dict[str, Vit | Resnet] = {
    "hybrid": small(stem=Hybrid(layers=(1,), root=32)),
    "hybrid-variance": small(stem=Hybrid(layers=(1,), root=32, standardization="variance")),
    "resnet": Resnet(layers=(1,), root=32, image_size=Size(32, 48)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_network_that_begins_with_convolutions_shows_the_first_as_it_is_used(name: str) -> None:
    model = CONVOLUTIONS[name].build()
    found = embedding_filters(model)
    assert found.components.shape == (28, 7, 7, 3)
    conv = next(part for part in model.modules() if isinstance(part, StdConv2d))
    # A place where a single pixel is lit, and its surroundings: the convolution draws its kernels, turned around.
    dot = torch.zeros(3, 3, 13, 13)
    dot[range(3), range(3), 6, 6] = 1
    conv.stride = 1
    drawn = conv(dot)[:, :, 3:10, 3:10].flip(2, 3).detach().double()  # (C, D, 7, 7)
    rows = drawn.permute(1, 2, 3, 0).flatten(1)  # (D, 7 7 C)
    differences = rows - rows.mean(dim=0)
    shown = torch.from_numpy(found.components).double().flatten(1)
    shares = (differences @ shown.mT).square().sum(dim=0) / differences.square().sum()
    np.testing.assert_allclose(found.explained_variance, shares, rtol=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "stem-palette"])
def test_every_model_has_filters_to_show(name: str) -> None:
    model = VARIANTS[name].build()
    found = embedding_filters(model)
    count = len(found.components)
    assert 0 < count <= 28
    assert found.components.shape[3] == model.config.channels
    assert found.components.dtype == found.explained_variance.dtype == np.float32
    lengths = np.square(found.components).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(lengths, 1, atol=1e-5)
    assert (np.diff(found.explained_variance) <= 0).all()
    assert found.explained_variance.sum() <= 1 + 1e-6


def test_colors_that_are_looked_up_have_no_filters() -> None:
    found = embedding_filters(VARIANTS["stem-palette"].build())
    assert (len(found.components), len(found.explained_variance)) == (0, 0)


def test_filters_that_are_all_the_same_have_no_components() -> None:
    model = small().build()
    nn.init.constant_(stem_of(model).project.weight, 0.3)
    found = embedding_filters(model)
    assert found.components.shape == (0, 8, 8, 3)
    assert found.explained_variance.shape == (0,)
