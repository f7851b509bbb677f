"""The judge of answers: how often the model names the right class, and whether it knows when it does not."""

from typing import Literal

from vitral.config import Config
from vitral.evaluate.accuracy import Accuracy, judged
from vitral.evaluate.calibration import Calibration, calibrated
from vitral.evaluate.subject import Subject


class AccuracyFound(Config):
    """The judgement of the answers."""

    kind: Literal["accuracy"] = "accuracy"
    accuracy: Accuracy
    calibration: Calibration


class AccuracyJudge(Config):
    """The answers of the model's own head, by the names of its classes."""

    kind: Literal["accuracy"] = "accuracy"

    def check(self, subject: Subject) -> None:
        subject.need_classes(self.kind)

    def judge(self, subject: Subject) -> AccuracyFound:
        answers = subject.answers(subject.trained)
        return AccuracyFound(accuracy=judged(answers, subject.bundle.classes), calibration=calibrated(answers))
