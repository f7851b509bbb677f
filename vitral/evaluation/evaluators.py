"""The list of evaluators, and the record of an evaluation."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from vitral.core.config import Config, OpenUnion, union_members
from vitral.core.errors import ConfigError, suggest_choice
from vitral.data.samples import Split
from vitral.evaluation.abstention import AbstentionEvaluator, AbstentionResult
from vitral.evaluation.accuracy import AccuracyEvaluator, AccuracyResult
from vitral.evaluation.calibration import CalibrationEvaluator, CalibrationResult
from vitral.evaluation.fewshot import FewShotEvaluator, FewShotResult
from vitral.evaluation.knn import KnnEvaluator, KnnResult
from vitral.evaluation.label_sets import LabelSetsEvaluator, LabelSetsResult, refuse_label_sets
from vitral.evaluation.linear_probe import LinearEvaluator, LinearResult
from vitral.evaluation.ood import OodEvaluator, OodResult
from vitral.evaluation.resolution import ResolutionEvaluator, ResolutionResult
from vitral.evaluation.robustness.evaluator import RobustnessEvaluator, RobustnessResult
from vitral.evaluation.subject import SubjectModel
from vitral.evaluation.token_merging import TokenMergingEvaluator, TokenMergingResult

Evaluator = (
    AccuracyEvaluator
    | CalibrationEvaluator
    | AbstentionEvaluator
    | LabelSetsEvaluator
    | KnnEvaluator
    | FewShotEvaluator
    | LinearEvaluator
    | OodEvaluator
    | ResolutionEvaluator
    | TokenMergingEvaluator
    | RobustnessEvaluator
)
EvaluatorResult = Annotated[
    AccuracyResult
    | CalibrationResult
    | AbstentionResult
    | LabelSetsResult
    | KnnResult
    | FewShotResult
    | LinearResult
    | OodResult
    | ResolutionResult
    | TokenMergingResult
    | RobustnessResult,
    OpenUnion(),
]


class Evaluation(Config):
    """The results of a model on a split of a dataset."""

    model: str  # its path
    data: str
    split: Split
    images: int  # of the split
    classes: int
    seed: int
    results: tuple[EvaluatorResult, ...]  # in the order of the evaluators
    notes: tuple[str, ...]  # caveats

    def __str__(self) -> str:
        """The text that the command prints."""
        from vitral.evaluation.results import format_evaluation

        return format_evaluation(self)

    def _repr_html_(self) -> str:
        """The tables of the results, for a notebook."""
        from vitral.evaluation.results import evaluation_card

        return evaluation_card(self)


def parse_evaluators(names: str | Iterable[str | Evaluator]) -> list[Evaluator]:
    """The evaluators that `accuracy,knn` names, or a list of names or evaluators; repetitions count once."""
    kinds = {each.model_fields["kind"].default: each for each in union_members(Evaluator)}
    evaluators: dict[str, Evaluator] = {}
    for each in names.split(",") if isinstance(names, str) else names:
        name = each.strip() if isinstance(each, str) else each.kind
        if name not in kinds:
            message = f"unknown evaluator {name!r}"
            raise ConfigError(message, code="config.unknown_name", where="--with", hint=suggest_choice(name, kinds))
        evaluators[name] = kinds[name]() if isinstance(each, str) else each
    if not evaluators:
        hint = suggest_choice("", kinds)
        raise ConfigError("no evaluator given", code="config.missing_value", where="--with", hint=hint)
    return list(evaluators.values())


def run_evaluators(evaluators: Sequence[Evaluator], subject: SubjectModel) -> tuple[EvaluatorResult, ...]:
    """The result of each evaluator. All of them are checked before the first runs."""
    for evaluator in evaluators:
        refuse_label_sets(subject, evaluator.kind)
        evaluator.check(subject)
    return tuple(evaluator.evaluate(subject) for evaluator in evaluators)
