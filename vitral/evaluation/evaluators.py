"""Every way to judge a model, and what an evaluation is."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from vitral.core.config import Config, members
from vitral.core.errors import ConfigError, suggest
from vitral.data.samples import Split
from vitral.evaluation.accuracy import AccuracyFound, AccuracyJudge
from vitral.evaluation.fewshot import FewShotFound, FewShotJudge
from vitral.evaluation.knn import KnnFound, KnnJudge
from vitral.evaluation.linear_probe import LinearFound, LinearJudge
from vitral.evaluation.resolution import ResolutionFound, ResolutionJudge
from vitral.evaluation.subject import Subject
from vitral.evaluation.token_merging import TokensFound, TokensJudge

Judge = AccuracyJudge | KnnJudge | FewShotJudge | LinearJudge | ResolutionJudge | TokensJudge
Found = Annotated[
    AccuracyFound | KnnFound | FewShotFound | LinearFound | ResolutionFound | TokensFound, Field(discriminator="kind")
]


class Evaluation(Config):
    """What was found out about a model, by whom and from which images."""

    model: str  # where it is
    data: str
    split: Split
    images: int  # of the split
    classes: int
    seed: int
    found: tuple[Found, ...]  # in the order that was asked for
    notes: tuple[str, ...]  # what a reader of the numbers should know


def judges_of(wanted: str | Iterable[str | Judge]) -> list[Judge]:
    """The judges that `accuracy,knn` names, or several such words or judges, each once."""
    kinds = {judge.model_fields["kind"].default: judge for judge in members(Judge)}
    words = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    found: dict[str, Judge] = {}
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


def found_by(judges: Iterable[Judge], subject: Subject) -> tuple[Found, ...]:
    """What each judge finds. All that one of them would refuse is refused before the first begins."""
    asked = list(judges)
    for judge in asked:
        judge.check(subject)
    return tuple(judge.judge(subject) for judge in asked)
