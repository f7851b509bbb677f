"""A model and data that do not belong together are refused with both lists."""

from tests.errors import raises
from tests.evaluation.subjects import striped_model, stripes
from vitral.core.config import Size
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import IMAGENET, Preprocessing
from vitral.evaluation.subject import check_has_head, check_same_preprocessing, match_labels


def test_the_same_classes_have_the_same_labels() -> None:
    assert match_labels(stripes(), striped_model().bundle).tolist() == [0, 1, 2]


def test_classes_in_another_order_are_matched_by_name() -> None:
    bundle = striped_model(("cat", "ant", "bee")).bundle
    assert match_labels(stripes(), bundle).tolist() == [1, 2, 0]


def test_some_of_the_models_classes_will_do() -> None:
    bundle = striped_model(("dog", "cat", "ant", "bee")).bundle
    assert match_labels(stripes(), bundle).tolist() == [2, 3, 1]


def test_a_class_that_the_model_does_not_have_is_refused_with_both_lists() -> None:
    values = ("1 of the 3", "cat.", "ant, bee, cat", "bee, dog, eel, ant", "--with knn,linear")
    with raises("data.unknown_class", *values) as caught:
        match_labels(stripes(), striped_model(("bee", "dog", "eel", "ant")).bundle)
    assert caught.value.where == "stripes"


def test_a_name_that_two_classes_have_cannot_be_matched() -> None:
    names = ("crane", "crane", "ant", "bee", "cat")
    assert match_labels(stripes(names), striped_model(names).bundle).tolist() == [0, 1, 2, 3, 4]
    with raises("data.ambiguous_class", "crane"):
        match_labels(stripes(("ant", "crane")), striped_model(names).bundle)


def test_a_model_without_a_head_is_refused_with_the_remedy() -> None:
    check_has_head(striped_model().bundle, "accuracy")
    with raises("config.unsupported", "--with accuracy", "'masked_patches'", "--with knn,linear"):
        check_has_head(striped_model(()).bundle, "accuracy")


def test_another_preprocessing_is_refused_with_both_shown() -> None:
    ours = Preprocessing(image_size=Size(16, 16))
    check_same_preprocessing(ours, Preprocessing(image_size=Size(16, 16)))
    with raises("config.conflict", "32x24", "16x16", "kind='center'", "kind='resize'", "0.485") as caught:
        check_same_preprocessing(ours, Preprocessing(image_size=Size(32, 24), crop=CenterCrop(), normalize=IMAGENET))
    message = str(caught.value)
    assert "mean=(0.5,)" in message
    assert "decoding" not in message
