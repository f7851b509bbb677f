"""The judgment before an export gets its name: what answers otherwise is found, be it nearly right."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.inference.exports import album, loaded, plan, truth
from vitral.data.transforms.preprocessing import Normalize
from vitral.exporters.targets import OnnxTarget
from vitral.exporters.verify import BATCHES, FEW, FLOAT32, INT8, Original, Sitting, expected, faults, judge, seen
from vitral.inference.engines.engine import Engine, FloatArray, PixelBatch, run_in_batches
from vitral.inference.exported import Accuracy, Certificate, Comparison
from vitral.inference.graph.graph import Graph, graph_of
from vitral.inference.graph.onnx import to_onnx
from vitral.weights.load import Loaded


def certificate(engine: Engine, found: Loaded) -> Certificate:
    sitting = Sitting(album(), found.bundle.preprocessing, ())
    return judge(engine, truth(found, sitting), sitting, FLOAT32, sitting.words(), BATCHES)


def engine_of(graph: Graph) -> Engine:
    return OnnxTarget().engine(to_onnx(graph))


def wrong_mean(found: Loaded) -> Graph:
    scaling = Normalize(mean=(0.2, 0.4, 0.61), std=(0.2, 0.3, 0.4))
    needs = found.bundle.preprocessing.model_copy(update={"normalize": scaling})
    return graph_of(found._replace(bundle=found.bundle.model_copy(update={"preprocessing": needs})))


def swapped_channels(found: Loaded) -> Graph:
    graph = graph_of(found)
    weight = graph.get_buffer("body.stem.weight")  # (D, P Q C), the colors innermost
    weight.copy_(weight.unflatten(-1, (-1, 3)).flip(-1).flatten(-2))
    return graph


def transposed_weight(found: Loaded) -> Graph:
    graph = graph_of(found)
    weight = graph.get_parameter("body.blocks.0.mixer.project.weight")
    weight.copy_(weight.mT.clone())
    return graph


def test_a_faithful_export_holds_and_its_certificate_says_what_was_asked() -> None:
    found = loaded()
    told = certificate(engine_of(graph_of(found)), found)
    assert faults(told, FLOAT32) == []
    assert [(each.batch, each.images) for each in told.comparisons] == [(1, FEW), (3, FEW), (32, 72)]
    assert 0 < told.difference <= 1e-4
    assert told.agreement == 1.0
    assert Certificate.from_json(told.to_json()) == told
    assert told.lines()[0].startswith(
        "judged by 40 bundled images, 32 of them once more in mixed colors, in batches of"
    )


def test_accuracy_is_of_the_images_that_have_labels() -> None:
    found = loaded()
    sitting = Sitting(album(), found.bundle.preprocessing, ())
    own = Original(found).run(seen(album().samples, album().judging, found.bundle.preprocessing)).argmax(axis=1)
    labels = [*own[:30].tolist(), *((own[30:] + 1) % 10).tolist()]  # of 40; those in mixed colors have none
    told = judge(Swayed(Original(found), turned=1), expected(found, sitting, labels), sitting, FLOAT32, "", (8,))
    assert told.accuracy == Accuracy(model=0.75, export=(30 - 4) / 40)


@pytest.mark.parametrize("broken", [wrong_mean, swapped_channels, transposed_weight])
def test_a_broken_export_is_found_out(broken: Callable[[Loaded], Graph]) -> None:
    found = loaded()
    graph = broken(found)
    told = certificate(engine_of(graph), found)
    assert faults(told, FLOAT32)[0].startswith("answers differ by ")
    assert faults(certificate(engine_of(graph_of(found)), found), FLOAT32) == []  # the model itself is as it was


@dataclass(frozen=True)
class Swayed:
    """The model, but the answers to some images of every batch are of other classes, or too large."""

    own: Original
    turned: int = 0
    added: float = 0.0

    def run(self, pixels: PixelBatch) -> FloatArray:
        answers = self.own.run(pixels) + np.float32(self.added)
        answers[: self.turned] = answers[: self.turned, ::-1]
        return answers


def test_each_part_of_the_bound_can_fail_alone() -> None:
    found = loaded()
    far = certificate(Swayed(Original(found), added=2e-4), found)
    assert [fault.partition(" ")[0] for fault in faults(far, FLOAT32)] == ["answers"]
    assert faults(far, INT8) == []  # int8 is held to classes alone
    turned = certificate(Swayed(Original(found), turned=1), found)
    assert [each.agreement for each in turned.comparisons] == [0.0, 21 / 33, 69 / 72]  # one of every batch
    assert turned.agreement == 69 / 72
    assert faults(turned, INT8)[:3] == [
        "in batches of 1 0.00% of 33 images have the same top-1, at least 99% must",
        "in batches of 3 63.64% of 33 images have the same top-1, at least 99% must",
        "in batches of 32 95.83% of 72 images have the same top-1, at least 99% must",
    ]
    lossy = far.model_copy(update={"accuracy": Accuracy(model=0.9, export=0.8949)})
    assert faults(lossy, INT8) == ["0.51 points of accuracy are lost, at most 0.5 may be"]
    held = far.model_copy(update={"accuracy": Accuracy(model=0.9, export=0.895)})
    assert faults(held, INT8) == []


@pytest.mark.parametrize(
    ("changed", "sound"),
    [((0, 0, 5), True), ((1, 1, 5), True), ((0, 0, 6), False), ((2, 0, 0), False), ((0, 2, 0), False)],
)
def test_one_image_in_a_hundred_may_change_its_class_in_every_batch_and_no_more(
    changed: tuple[int, ...], sound: bool
) -> None:
    rows = tuple(
        Comparison(batch=batch, images=images, difference=0.1, agreement=1 - count / images)
        for batch, images, count in zip(BATCHES, (FEW, FEW, 500), changed, strict=True)
    )
    told = Certificate(bound="", images="", comparisons=rows, accuracy=None)
    assert (faults(told, INT8) == []) is sound
    assert (faults(told, FLOAT32._replace(difference=1.0)) == []) is not any(changed)


def test_a_few_images_need_all_be_answered_alike() -> None:
    row = Comparison(batch=32, images=40, difference=5.4, agreement=39 / 40)
    same = tuple(row.model_copy(update={"batch": batch, "images": FEW, "agreement": 1.0}) for batch in (1, 3))
    told = Certificate(bound="", images="", comparisons=(*same, row), accuracy=None)
    assert len(faults(told, INT8)) == 1


def test_answers_that_are_no_numbers_are_refused() -> None:
    with raises("export.not_finite"):
        certificate(Swayed(Original(loaded()), added=float("nan")), loaded())


def test_a_model_that_says_the_same_of_everything_cannot_be_judged() -> None:
    found = loaded()
    with torch.no_grad():
        found.model.get_parameter("head.linear.weight").zero_()
    sitting = Sitting(album(), found.bundle.preprocessing, ())
    with raises("export.constant_output", "--data"):
        expected(found, sitting, ())


def test_features_are_held_to_their_numbers_alone() -> None:
    found = loaded(head=False)
    sitting = Sitting(album(), found.bundle.preprocessing, ())
    told = judge(engine_of(plan(found).graph), expected(found, sitting, ()), sitting, FLOAT32, "images", BATCHES)
    assert (told.agreement, told.accuracy) == (None, None)
    assert told.bound == "float32: numbers within 1e-04"
    assert faults(told, FLOAT32) == []


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
    sitting = Sitting(album(), found.bundle.preprocessing, ())
    told = judge(Original(found), truth(found, sitting), sitting, FLOAT32, "images", (4,))
    assert [(each.batch, each.images) for each in told.comparisons] == [(4, 72)]
    assert isinstance(told.comparisons[0], Comparison)
