from vitral.recipes.fashion import grey, sample


def test_the_demo_has_patches_that_fill_the_bundled_images() -> None:
    model = sample().model
    assert (model.image, model.channels) == ((28, 28), 1)
    assert grey(patch=7, width=64, depth=2).whole().layout.grid.cells() == 16


def test_shoes_are_never_mirrored() -> None:
    assert sample().images.view.model_dump()["flip"] is False
