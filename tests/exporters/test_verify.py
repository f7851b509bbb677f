"""The judgment before an export gets its name: what answers otherwise is found, be it nearly right."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.inference.exports import export_images, loaded, plan, truth
from vitral.data.transforms.preprocessing import Normalize
from vitral.exporters.targets import OnnxTarget
from vitral.exporters.verify import (
    BATCH_SIZES,
    FLOAT32,
    INT8,
    SMALL_BATCH_IMAGES,
    ReferenceEngine,
    VerificationImages,
    find_violations,
    load_pixels,
    reference_outputs,
    verify,
)
from vitral.inference.engines.engine import Engine, FloatArray, PixelBatch, run_in_batches
from vitral.inference.exported import Accuracy, Certificate, Comparison
from vitral.inference.graph.graph import Graph, build_graph
from vitral.inference.graph.onnx import to_onnx
from vitral.weights.load import LoadedModel


def certificate(engine: Engine, found: LoadedModel) -> Certificate:
    images = VerificationImages(export_images(), found.bundle.preprocessing, ())
    return verify(engine, truth(found, images), images, FLOAT32, images.describe(), BATCH_SIZES)


def engine_of(graph: Graph) -> Engine:
    return OnnxTarget().engine(to_onnx(graph))


def wrong_mean(found: LoadedModel) -> Graph:
    scaling = Normalize(mean=(0.2, 0.4, 0.61), std=(0.2, 0.3, 0.4))
    needs = found.bundle.preprocessing.model_copy(update={"normalize": scaling})
    return build_graph(found._replace(bundle=found.bundle.model_copy(update={"preprocessing": needs})))


def swapped_channels(found: LoadedModel) -> Graph:
    graph = build_graph(found)
    weight = graph.get_buffer("body.stem.weight")  # (D, P Q C), the colors innermost
    weight.copy_(weight.unflatten(-1, (-1, 3)).flip(-1).flatten(-2))
    return graph


def transposed_weight(found: LoadedModel) -> Graph:
    graph = build_graph(found)
    weight = graph.get_parameter("body.blocks.0.mixer.project.weight")
    weight.copy_(weight.mT.clone())
    return graph


def test_a_faithful_export_holds_and_its_certificate_says_what_was_asked() -> None:
    found = loaded()
    told = certificate(engine_of(build_graph(found)), found)
    assert find_violations(told, FLOAT32) == []
    assert [(each.batch, each.images) for each in told.comparisons] == [
        (1, SMALL_BATCH_IMAGES),
        (3, SMALL_BATCH_IMAGES),
        (32, 72),
    ]
    assert 0 < told.difference <= 1e-4
    assert told.agreement == 1.0
    assert Certificate.from_json(told.to_json()) == told
    assert told.images == "40 bundled images, 32 of them repeated with mixed channels"


def test_accuracy_is_of_the_images_that_have_labels() -> None:
    found = loaded()
    images = VerificationImages(export_images(), found.bundle.preprocessing, ())
    own = (
        ReferenceEngine(found)
        .run(load_pixels(export_images().samples, export_images().verification, found.bundle.preprocessing))
        .argmax(axis=1)
    )
    labels = [*own[:30].tolist(), *((own[30:] + 1) % 10).tolist()]  # of 40; those in mixed colors have none
    told = verify(
        Swayed(ReferenceEngine(found), turned=1), reference_outputs(found, images, labels), images, FLOAT32, "", (8,)
    )
    assert told.accuracy == Accuracy(model=0.75, export=(30 - 4) / 40)


@pytest.mark.parametrize("broken", [wrong_mean, swapped_channels, transposed_weight])
def test_a_broken_export_is_found_out(broken: Callable[[LoadedModel], Graph]) -> None:
    found = loaded()
    graph = broken(found)
    told = certificate(engine_of(graph), found)
    assert f"{told.difference:.1e}" in find_violations(told, FLOAT32)[0]
    assert (
        find_violations(certificate(engine_of(build_graph(found)), found), FLOAT32) == []
    )  # the model itself is as it was


@dataclass(frozen=True)
class Swayed:
    """The model, but the answers to some images of every batch are of other classes, or too large."""

    own: ReferenceEngine
    turned: int = 0
    added: float = 0.0

    def run(self, pixels: PixelBatch) -> FloatArray:
        answers = self.own.run(pixels) + np.float32(self.added)
        answers[: self.turned] = answers[: self.turned, ::-1]
        return answers


def test_each_part_of_the_bound_can_fail_alone() -> None:
    found = loaded()
    far = certificate(Swayed(ReferenceEngine(found), added=2e-4), found)
    (violation,) = find_violations(far, FLOAT32)
    assert f"{far.difference:.1e}" in violation
    assert find_violations(far, INT8) == []  # int8 is held to classes alone
    turned = certificate(Swayed(ReferenceEngine(found), turned=1), found)
    assert [each.agreement for each in turned.comparisons] == [0.0, 21 / 33, 69 / 72]  # one of every batch
    assert turned.agreement == 69 / 72
    for violation, share in zip(find_violations(turned, INT8)[:3], ("0.00%", "63.64%", "95.83%"), strict=True):
        assert share in violation
        assert "99%" in violation
    lossy = far.model_copy(update={"accuracy": Accuracy(model=0.9, export=0.8949)})
    (violation,) = find_violations(lossy, INT8)
    assert "0.51" in violation
    held = far.model_copy(update={"accuracy": Accuracy(model=0.9, export=0.895)})
    assert find_violations(held, INT8) == []


@pytest.mark.parametrize(
    ("changed", "sound"),
    [((0, 0, 5), True), ((1, 1, 5), True), ((0, 0, 6), False), ((2, 0, 0), False), ((0, 2, 0), False)],
)
def test_one_image_in_a_hundred_may_change_its_class_in_every_batch_and_no_more(
    changed: tuple[int, ...], sound: bool
) -> None:
    rows = tuple(
        Comparison(batch=batch, images=images, difference=0.1, agreement=1 - count / images)
        for batch, images, count in zip(
            BATCH_SIZES, (SMALL_BATCH_IMAGES, SMALL_BATCH_IMAGES, 500), changed, strict=True
        )
    )
    told = Certificate(bound="", images="", comparisons=rows, accuracy=None)
    assert (find_violations(told, INT8) == []) is sound
    assert (find_violations(told, FLOAT32._replace(difference=1.0)) == []) is not any(changed)


def test_a_few_images_need_all_be_answered_alike() -> None:
    row = Comparison(batch=32, images=40, difference=5.4, agreement=39 / 40)
    same = tuple(
        row.model_copy(update={"batch": batch, "images": SMALL_BATCH_IMAGES, "agreement": 1.0}) for batch in (1, 3)
    )
    told = Certificate(bound="", images="", comparisons=(*same, row), accuracy=None)
    assert len(find_violations(told, INT8)) == 1


def test_answers_that_are_no_numbers_are_refused() -> None:
    with raises("export.not_finite"):
        certificate(Swayed(ReferenceEngine(loaded()), added=float("nan")), loaded())


def test_a_model_that_says_the_same_of_everything_cannot_be_judged() -> None:
    found = loaded()
    with torch.no_grad():
        found.model.get_parameter("head.linear.weight").zero_()
    images = VerificationImages(export_images(), found.bundle.preprocessing, ())
    with raises("export.constant_output", "--data"):
        reference_outputs(found, images, ())


def test_features_are_held_to_their_numbers_alone() -> None:
    found = loaded(head=False)
    images = VerificationImages(export_images(), found.bundle.preprocessing, ())
    told = verify(
        engine_of(plan(found).graph), reference_outputs(found, images, ()), images, FLOAT32, "images", BATCH_SIZES
    )
    assert (told.agreement, told.accuracy) == (None, None)
    assert told.bound == "float32: outputs within 1e-04"
    assert find_violations(told, FLOAT32) == []


def test_the_last_batch_is_filled_up() -> None:
    @dataclass(frozen=True)
    class OfFour:
        def run(self, pixels: PixelBatch) -> FloatArray:
            assert len(pixels) == 4
            return pixels.reshape(4, -1).astype(np.float32)

    pixels = np.arange(9, dtype=np.uint8).reshape(9, 1, 1, 1)
    assert run_in_batches(OfFour(), pixels, 4).ravel().tolist() == list(range(9))


def test_a_comparison_is_of_the_first_images() -> None:
    found = loaded()
    images = VerificationImages(export_images(), found.bundle.preprocessing, ())
    told = verify(ReferenceEngine(found), truth(found, images), images, FLOAT32, "images", (4,))
    assert [(each.batch, each.images) for each in told.comparisons] == [(4, 72)]
    assert isinstance(told.comparisons[0], Comparison)
