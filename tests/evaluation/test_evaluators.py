"""The list of judges, and what all of them promise."""

from dataclasses import replace

import pytest

from tests.errors import raises
from tests.evaluation.subjects import striped_model, stripes, subject, tools, without
from tests.evaluation.test_token_merging import Blunt
from vitral.cli.terminal.completion import EVALUATORS
from vitral.core.config import union_members
from vitral.evaluation.evaluators import Evaluation, Evaluator, EvaluatorResult, parse_evaluators, run_evaluators
from vitral.evaluation.fewshot import FewShotEvaluator
from vitral.evaluation.knn import KnnEvaluator

KINDS = [judge.model_fields["kind"].default for judge in union_members(Evaluator)]


def test_every_judge_has_a_kind_and_finds_something_of_that_kind() -> None:
    assert list(EVALUATORS) == KINDS
    assert [found.model_fields["kind"].default for found in union_members(EvaluatorResult)] == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_judge_finds_comes_back_from_json(kind: str) -> None:
    samples = stripes()
    if kind == "label_sets":
        samples = replace(samples, label_sets={item.name: (0, 1) for item in samples.items})
    means = tools()._replace(merging_engines=Blunt(most=9), ood_data=stripes(("x", "y")))
    found = run_evaluators(parse_evaluators(kind), subject(samples=samples, means=means))
    whole = Evaluation(model="m", data="d", split="test", images=18, classes=3, seed=0, results=found, notes=())
    assert [each.kind for each in whole.results] == [kind]
    assert Evaluation.from_json(whole.to_json()) == whole


@pytest.mark.parametrize("kind", ["knn", "fewshot", "linear"])
def test_features_are_judged_on_any_classes_with_or_without_a_head(kind: str) -> None:
    for loaded in (striped_model(("x", "y")), striped_model(())):
        assert run_evaluators(parse_evaluators(kind), subject(loaded))


def test_judges_are_named_by_kind_or_given() -> None:
    assert [judge.kind for judge in parse_evaluators("linear, knn,knn")] == ["linear", "knn"]
    own = FewShotEvaluator(shots=(2,))
    assert parse_evaluators(["knn", own]) == [KnnEvaluator(), own]


@pytest.mark.parametrize(
    ("word", "names"),
    [("kn", ("'kn'", "'knn'")), ("", ("accuracy", "tokens")), ("knn,,linear", ("accuracy", "tokens"))],
)
def test_an_unknown_judge_is_answered_with_those_there_are(word: str, names: tuple[str, ...]) -> None:
    with raises("config.unknown_name", "--with", *names):
        parse_evaluators(word)


def test_no_judge_is_refused() -> None:
    with raises("config.missing_value", "--with", "accuracy", "tokens"):
        parse_evaluators([])


def test_what_the_last_judge_refuses_is_refused_before_the_first_begins() -> None:
    whole = subject(samples=without(stripes(), "train"))
    with raises("data.too_few", "knn"):
        run_evaluators(parse_evaluators("accuracy,knn"), whole)
    assert whole._predictions == {}
