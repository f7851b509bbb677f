"""Every way to judge a model, and what an evaluation is."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from vitral.core.config import Config, members
from vitral.core.errors import ConfigError, suggest
from vitral.data.samples import Split
from vitral.evaluation.accuracy import AccuracyEvaluator, AccuracyResult
from vitral.evaluation.fewshot import FewShotEvaluator, FewShotResult
from vitral.evaluation.knn import KnnEvaluator, KnnResult
from vitral.evaluation.linear_probe import LinearEvaluator, LinearResult
from vitral.evaluation.resolution import ResolutionEvaluator, ResolutionResult
from vitral.evaluation.subject import SubjectModel
from vitral.evaluation.token_merging import TokenMergingEvaluator, TokenMergingResult

Evaluator = AccuracyEvaluator | KnnEvaluator | FewShotEvaluator | LinearEvaluator | ResolutionEvaluator | TokenMergingEvaluator
EvaluatorResult = Annotated[
    AccuracyResult | KnnResult | FewShotResult | LinearResult | ResolutionResult | TokenMergingResult, Field(discriminator="kind")
]


class Evaluation(Config):
    """What was found out about a model, by whom and from which images."""

    model: str  # where it is
    data: str
    split: Split
    images: int  # of the split
    classes: int
    seed: int
    found: tuple[EvaluatorResult, ...]  # in the order that was asked for
    notes: tuple[str, ...]  # what a reader of the numbers should know


def parse_evaluators(wanted: str | Iterable[str | Evaluator]) -> list[Evaluator]:
    """The judges that `accuracy,knn` names, or several such words or judges, each once."""
    kinds = {judge.model_fields["kind"].default: judge for judge in members(Evaluator)}
    words = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    found: dict[str, Evaluator] = {}
    for word in words:
        name = word.strip() if isinstance(word, str) else word.kind
        if name not in kinds:
            message = f"there is no judge {name!r}"
            raise ConfigError(message, code="config.unknown_name", where="--with", hint=suggest(name, kinds))
        found[name] = kinds[name]() if isinstance(word, str) else word
    if not found:
        hint = suggest("", kinds)
        raise ConfigError("no judge is named", code="config.missing_value", where="--with", hint=hint)
    return list(found.values())


def run_evaluators(judges: Iterable[Evaluator], subject: SubjectModel) -> tuple[EvaluatorResult, ...]:
    """What each judge finds. All that one of them would refuse is refused before the first begins."""
    asked = list(judges)
    for judge in asked:
        judge.check(subject)
    return tuple(judge.judge(subject) for judge in asked)
