"""What an evaluation found, as a reader sees it."""

from io import StringIO

import pytest
from rich.console import Console

from tests.data.reader import Reader
from tests.evaluation.subjects import striped_model, stripes
from tests.evaluation.test_accuracy import NAMES, ZOO, given_as, random_answers
from vitral.core.config import Size
from vitral.evaluation.accuracy import AccuracyResult, Interval, compute_accuracy, compute_calibration, wilson_interval
from vitral.evaluation.evaluators import Evaluation
from vitral.evaluation.fewshot import FewShotResult, Score, ShotsResult
from vitral.evaluation.knn import KnnResult
from vitral.evaluation.linear_probe import LinearResult
from vitral.evaluation.resolution import ResolutionResult, SizeResult, stable_range
from vitral.evaluation.results import format_evaluation, format_result, print_evaluation
from vitral.evaluation.subject import Predictions
from vitral.evaluation.token_merging import MergingResult, TokenMergingResult
from vitral.html.text import MISSING
from vitral.runs.evaluate import evaluate

SURE = Interval(low=0.55, high=0.65)


def accuracy_of(answers: Predictions, names: tuple[str, ...]) -> AccuracyResult:
    return AccuracyResult(accuracy=compute_accuracy(answers, names), calibration=compute_calibration(answers))


def test_the_accuracy_of_a_small_zoo() -> None:
    lines = format_result(accuracy_of(given_as(ZOO, 4), NAMES))
    assert lines[0] == "top-1                44.4%  (95% CI 18.9% to 73.3%)"
    assert not any(line.startswith("top-5") for line in lines), "of four classes every answer is among the top 5"
    assert "most frequent class  55.6%" in lines
    assert lines[-5:] == [
        "class  images  recall  precision  most confused with",
        "cat    5       60.0%   60.0%      dog (1)",
        "dog    3       33.3%   33.3%      cat (2)",
        f"fox    1       0.0%    {MISSING}          dog (1)",
        f"hen    0       {MISSING}       0.0%",
    ]


def test_of_many_classes_the_worst_are_shown() -> None:
    names = tuple(f"class {number}" for number in range(40))
    found = accuracy_of(random_answers(300, 40), names)
    lines = format_result(found)
    assert lines[-1] == "... and 28 more with higher recall; --json lists all"
    shown = [float(line.split("%")[0].split()[-1]) for line in lines[-13:-1]]
    assert shown == sorted(shown)
    assert shown[0] == pytest.approx(
        100 * min(each.recall for each in found.accuracy.classes if each.recall is not None)
    )


def test_neighbors_and_probe_say_what_was_chosen_and_how() -> None:
    knn = KnnResult(images=100, train_images=500, k=10, top1=0.6, ci95=SURE, trials=())
    assert format_result(knn) == [
        "top-1  60.0%  (95% CI 55.0% to 65.0%)",
        "k = 10, chosen by 5-fold cross-validation on 500 training images",
    ]
    linear = LinearResult(images=9, train_images=500, l2=0.001, top1=0.6, ci95=SURE, converged=True, trials=())
    assert format_result(linear)[1:] == ["l2 = 0.001, chosen on a fifth of 500 training images, then fitted to all"]
    assert "did not converge" in format_result(linear.model_copy(update={"converged": False}))[-1]


def test_the_best_of_the_grid_is_said_to_flatter() -> None:
    own = Score(l2=1024, mean=0.5, std=0.02, per_seed=(0.48, 0.52))
    best = Score(l2=16, mean=0.6, std=0.01, per_seed=(0.59, 0.61))
    rows = (ShotsResult(shots=5, score=own, oracle=best),)
    found = FewShotResult(images=10, seeds=(0, 1), rows=rows, skipped=("25 shots: too few training images of bee",))
    assert format_result(found) == [
        "shots  l2 = 1024     best l2 *",
        "5      50.0% +- 2.0  60.0% +- 1.0 at 16",
        "mean and standard deviation over seeds 0, 1",
        "* chosen on the test images, as in big_vision: optimistic",
        "skipped: 25 shots: too few training images of bee",
    ]
    assert format_result(found.model_copy(update={"rows": ()})) == ["25 shots: too few training images of bee"]


def over_sizes(right: list[int]) -> ResolutionResult:
    """So many of 100 right at 8, 16, 24 ... pixels; the third is the trained size."""
    rows = [
        SizeResult(
            image_size=Size(8 * n, 8 * n),
            grid=Size(n, n),
            top1=each / 100,
            ci95=wilson_interval(each, 100),
            is_train_size=n == 3,
        )
        for n, each in enumerate(right, start=1)
    ]
    held = stable_range([row.top1 for row in rows], 2)
    return ResolutionResult(
        images=100, rows=tuple(rows), min_size=rows[held.start].image_size, max_size=rows[held.stop - 1].image_size
    )


def test_where_accuracy_falls_off_is_said_in_words() -> None:
    lines = format_result(over_sizes([40, 79, 80, 79, 70, 20]))
    assert next(line for line in lines if "training size" in line).startswith("24x24  3x3      80.0%")
    assert lines[-3:] == [
        "from 16x16 to 32x32 the accuracy stays within 2 points of that at the training size",
        "smaller images lose 40.0 points at 8x8",
        "larger images lose 10.0 points at 40x40; fine-tune at that size",
    ]
    assert (
        format_result(over_sizes([80, 80, 80, 80]))[-1] == "no size loses more than 2 points against the training size"
    )
    assert "only at 24x24 the accuracy" in format_result(over_sizes([10, 10, 80, 10]))[-3]


def over_counts(right: list[int], most: int) -> TokenMergingResult:
    """So many of 100 right when each layer merges 0, 4, 8 ..., twice as fast with each step."""
    rows = [
        MergingResult(
            per_layer=4 * step,
            tokens=65 - step,
            images_per_second=10.0 * 2**step,
            speedup=2.0**step,
            top1=each / 100,
            ci95=wilson_interval(each, 100),
        )
        for step, each in enumerate(right)
    ]
    return TokenMergingResult(images=100, engine="openvino", batch_size=64, rows=tuple(rows), best_per_layer=most)


def test_accuracy_against_speed_is_a_table_a_verdict_and_a_curve() -> None:
    lines = format_result(over_counts([80, 80, 60], most=4))
    assert lines[:6] == [
        "merged  tokens left  images/s  speedup  top-1",
        "0       65           10.0      1.00     80.0%  (95% CI 71.1% to 86.7%)",
        "4       64           20.0      2.00     80.0%  (95% CI 71.1% to 86.7%)",
        "8       63           40.0      4.00     60.0%  (95% CI 50.2% to 69.1%)",
        "openvino, batch size 64; merged: patches merged in every layer",
        "the fastest within half a point merges 4: 2.00x, 0.0 points less",
    ]
    assert lines[7].startswith("80% |0")
    assert "images/s" in lines[-1]
    assert format_result(over_counts([80, 60], most=0))[4].startswith("nothing within half a point is faster")


def test_the_whole_evaluation_is_a_heading_and_a_part_for_each_judge() -> None:
    kinds = ("accuracy", "knn", "fewshot", "linear", "resolution", "tokens")
    evaluation = evaluate(striped_model(), stripes(), cache=False, with_=kinds)
    text = format_evaluation(evaluation)
    assert str(evaluation) == text
    headings = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert headings == ["a model in memory on stripes: 18 test images of 3 classes", *kinds]
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("color", [True, False])
def test_headings_are_bold_where_there_is_a_terminal(color: bool) -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=color, color_system="standard" if color else None, width=20)
    print_evaluation("heading\n  a line that is longer than the terminal is wide", console)
    assert ("\x1b[1mheading" in out.getvalue()) == color
    assert "a line that is longer than the terminal is wide" in out.getvalue()


def test_an_evaluation_shows_itself_in_a_notebook() -> None:
    names = ("<b>cat</b>", "dog", "fox", "hen")
    evaluation = Evaluation(
        model="runs/<a>",
        data="zoo",
        split="test",
        images=9,
        classes=4,
        seed=0,
        results=(accuracy_of(given_as(ZOO, 4), names),),
        notes=("some images may be training images",),
    )
    text = evaluation._repr_html_()
    reader = Reader(text)
    for told in ("runs/<a> on zoo: 9 test images of 4 classes", "top-1", "44.4%", "<b>cat</b>", *evaluation.notes):
        assert told in reader.text, told
    assert [tag for tag, _ in reader.tags].count("table") == 2
    assert "b" not in [tag for tag, _ in reader.tags]
