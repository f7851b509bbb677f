from vitral.recipes.small import gray_vit, sample


def test_the_demo_has_patches_that_fill_the_bundled_images() -> None:
    model = sample().model
    assert (model.image_size, model.channels) == ((28, 28), 1)
    assert gray_vit(patch=7, width=64, depth=2).context().layout.grid.cells() == 16


def test_shoes_are_never_mirrored() -> None:
    assert sample().images.crop.model_dump()["flip"] is False
