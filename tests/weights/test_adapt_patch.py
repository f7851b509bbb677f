"""Other patch sizes: the patch embedding resized by the pseudo-inverse."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import vitral
from tests.errors import raises
from tests.models.variants import VARIANTS, small
from tests.weights.bundles import loaded, tensors_of
from vitral.cli import main
from vitral.core.config import Size, override
from vitral.models import Hybrid, Patches, Resnet, Vit
from vitral.models.base import patch_grid
from vitral.models.embed import cut_patches, join_patches
from vitral.weights.adapt import adapt, load_pretrained, resize_patches
from vitral.weights.certificate import read_certificate

WEIGHT = "stem.project.weight"


def resize(patches: Tensor, size: Size) -> Tensor:
    return F.interpolate(patches, size=tuple(size), mode="bilinear", align_corners=False)


def tokens(patches: Tensor, kernel: Tensor) -> Tensor:
    return torch.einsum("ncpq,dcpq->nd", patches, kernel)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Size(8, 8), Size(16, 16)),
        (Size(16, 16), Size(17, 16)),
        (Size(14, 14), Size(16, 16)),
        (Size(16, 16), Size(32, 48)),
        (Size(4, 6), Size(9, 7)),
        (Size(1, 1), Size(3, 3)),
    ],
    ids=str,
)
def test_enlarged_patches_give_the_same_tokens(old: Size, new: Size) -> None:
    rng = torch.Generator().manual_seed(0)
    kernel = torch.randn(5, 3, *old, generator=rng, dtype=torch.float64)
    patches = torch.randn(7, 3, *old, generator=rng, dtype=torch.float64)
    found = tokens(resize(patches, new), resize_patches(kernel, new))
    assert torch.allclose(found, tokens(patches, kernel), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("old", "new"), [(Size(8, 8), Size(4, 4)), (Size(7, 7), Size(4, 5)), (Size(6, 6), Size(3, 9))], ids=str
)
def test_reduced_patches_are_the_least_squares_fit_of_the_tokens(old: Size, new: Size) -> None:
    """Over noise of which the second moments are exactly those of white noise, and the fit is by another method."""
    rng = torch.Generator().manual_seed(0)
    kernel = torch.randn(5, 1, *old, generator=rng, dtype=torch.float64)
    noise = torch.randn(400, old.height * old.width, generator=rng, dtype=torch.float64)
    patches = torch.linalg.qr(noise).Q.unflatten(1, (1, *old))
    resized, expected = resize(patches, new).flatten(1), tokens(patches, kernel)
    fit = torch.linalg.lstsq(resized, expected, driver="gelsd").solution.mT  # (D, P Q), of the least norm
    assert torch.allclose(resize_patches(kernel, new).flatten(1), fit, rtol=0, atol=1e-9)
    assert not torch.allclose(resized @ fit.mT, expected, atol=1e-3)  # some of the patch is lost


def test_patches_of_the_same_size_are_the_same_tensor() -> None:
    kernel = torch.randn(5, 3, 8, 6)
    assert resize_patches(kernel, Size(8, 6)) is kernel
    assert resize_patches(kernel, Size(6, 8)).dtype == torch.float32


def test_a_model_with_larger_patches_answers_for_larger_images_as_before() -> None:
    source = loaded(small())
    made = adapt(source, patch=16, image_size=(64, 96))
    assert made.messages == ("patches of 8x8 resized to 16x16 by the pseudo-inverse",)
    images = torch.randn(2, 3, 4, 6, 8, 8)  # B, C, R, S, P, Q
    grown = resize(images.permute(0, 2, 3, 1, 4, 5).flatten(0, 2), Size(16, 16)).unflatten(0, (2, 4, 6))
    old, new = (each.movedim(-3, 1) for each in (images.permute(0, 2, 3, 1, 4, 5), grown))  # (B, C, R, S, P, Q)
    old, new = (each.transpose(3, 4).flatten(4).flatten(2, 3) for each in (old, new))  # (B, C, H, W)
    with torch.no_grad():
        assert torch.allclose(made.loaded.model(new), source.model(old), rtol=1e-4, atol=1e-4)


def enlarge(images: Tensor, old: Size, new: Size) -> Tensor:
    """Images (B, C, H, W) of which each patch is resized by itself."""
    grid = patch_grid(Size(*images.shape[2:]), old)
    patches = cut_patches(images, old).flatten(0, 1).unflatten(1, (-1, *old))  # (B N, C, P, Q)
    grown = resize(patches, new).flatten(1).unflatten(0, (len(images), -1))  # (B, N, C p q)
    return join_patches(grown, grid, new)


def test_the_command_makes_a_bundle_that_answers_for_enlarged_patches_as_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = loaded(small())
    vitral.save(source.model, tmp_path / "small", classes=source.bundle.classes)
    words = [str(tmp_path / "small"), str(tmp_path / "large"), "--patch", "12x16", "--image-size", "48x96"]
    with pytest.raises(SystemExit) as ended:
        main(["convert", *words])
    assert ended.value.code in (0, None)
    assert capsys.readouterr().out.strip() == str(tmp_path / "large")
    model, bundle = vitral.load(tmp_path / "large")
    assert isinstance(bundle.model, Vit)
    assert (bundle.model.stem.patch, bundle.model.image_size) == ((12, 16), (48, 96))
    assert read_certificate(tmp_path / "large").changed == ("patches of 8x8 resized to 12x16 by the pseudo-inverse",)
    images = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        found = model.double()(enlarge(images, Size(8, 8), Size(12, 16)))
        assert torch.allclose(found, source.model.double()(images), rtol=0, atol=1e-5)  # weights are rounded to float32


def test_one_number_on_the_command_line_is_a_square_patch(tmp_path: Path) -> None:
    vitral.save(loaded(small()).model, tmp_path / "small")
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(tmp_path / "small"), str(tmp_path / "large"), "--patch", "16", "--image-size", "64x96"])
    assert ended.value.code in (0, None)
    model = vitral.load(tmp_path / "large").bundle.model
    assert isinstance(model, Vit)
    assert (model.stem.patch, model.image_size) == ((16, 16), (64, 96))
    assert read_certificate(tmp_path / "large").read.file == "model.safetensors"  # and no path of this machine


def test_another_patch_keeps_the_image_size_and_resamples_positions() -> None:
    made = adapt(loaded(small()), patch="4x8")
    assert made.messages == (
        "patches of 8x8 resized to 4x8 by the pseudo-inverse",
        "positions resampled from 4x6 to 8x6",
    )
    bundle, model = made.loaded.bundle, made.loaded.model
    assert isinstance(bundle.model, Vit)
    assert isinstance(bundle.model.stem, Patches)
    assert (bundle.model.image_size, bundle.model.stem.patch) == ((32, 48), (4, 8))
    assert bundle.preprocessing.image_size == (32, 48)
    assert model(torch.zeros(1, 3, 32, 48)).shape == (1, 4)


def test_patches_and_channels_change_together() -> None:
    made = adapt(loaded(small()), patch=4, channels=1).loaded.model.state_dict()[WEIGHT]
    summed = tensors_of(small())[WEIGHT].unflatten(1, (3, 8, 8)).sum(1, keepdim=True)
    assert torch.allclose(made, resize_patches(summed, Size(4, 4)).flatten(1), atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        small(stem=Patches(patch=Size(8, 8), norm="both")),
        small(stem=Hybrid(layers=(1, 1), root=32)),
        VARIANTS["resnet"],
    ],
    ids=["norm before", "hybrid", "resnet"],
)
def test_a_stem_that_is_not_linear_in_the_pixels_is_refused(config: Vit | Resnet) -> None:
    with raises("config.unsupported", "patch"):
        adapt(loaded(config), patch=4)


@pytest.mark.parametrize("patch", [5, 0, "x", 64])
def test_a_patch_that_does_not_fit_the_image_is_refused(patch: int | str) -> None:
    with pytest.raises(vitral.ConfigError):
        adapt(loaded(small()), patch=patch)


def test_a_new_run_may_have_other_patches_than_its_weights() -> None:
    model = override(small(), ["stem.patch=16"]).build()
    messages = load_pretrained(model, loaded(small()))
    assert messages[1:] == (
        "patches of 8x8 resized to 16x16 by the pseudo-inverse",
        "positions resampled from 4x6 to 2x3",
    )
    kernel = tensors_of(small())[WEIGHT].unflatten(1, (3, 8, 8))
    assert torch.equal(model.state_dict()[WEIGHT], resize_patches(kernel, Size(16, 16)).flatten(1))
