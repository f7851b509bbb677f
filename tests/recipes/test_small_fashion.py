from vitral.recipes.small import fashion_finetune, fashion_masked, fashion_tenth


def test_what_masked_patches_taught_fits_the_model_that_is_tuned() -> None:
    assert fashion_masked().model == fashion_finetune().model
    assert fashion_masked().images.normalize == fashion_finetune().images.normalize


def test_with_and_without_pre_training_the_run_is_the_same() -> None:
    assert fashion_finetune().model_copy(update={"name": "fashion_tenth"}) == fashion_tenth()
    assert fashion_tenth().data.fraction == 0.1
