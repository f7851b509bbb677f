"""The verdict on one file: ours against the library's own tokens and logits, in float64.

right       relative error of tokens and logits at most 1e-6 at every size
refused     an error with a code; of a bare file, one that names the true architecture among its candidates
unnamed     a bare file is refused and the true architecture is not among the candidates: a failure
wrong       other tokens or other logits, whatever was said about assumptions
crashed     an exception without a code
"""

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import vitral
from vitral.core.errors import VitralError
from vitral.models.base import Model

TOLERANCE = 1e-6
VERDICTS = ("right", "refused", "unnamed", "wrong", "crashed")
FAILURES = ("unnamed", "wrong", "crashed")


class Answers(NamedTuple):
    """What the library says of one batch."""

    images: Tensor
    tokens: dict[str, Tensor]  # by definition, the library's own first: after or before its last norm
    logits: Tensor | None  # none where the library has neither head nor pool


class Subject(NamedTuple):
    """A model that another library has written to the disk, what it answers, and how ours is asked to open it."""

    ways: Mapping[str, tuple[Path, Mapping[str, Any]]]  # the path and the options of vitral.load, by way
    answers: Sequence[Answers]
    notes: tuple[str, ...] = ()
    candidate: str = ""  # the architecture that a refusal of the bare file must name; none outside of timm
    traits: tuple[str, ...] = ()  # the parts that the library builds it of, to count what is missing


class Float64(TorchFunctionMode):
    """Casts to float32 that a library writes out become casts to float64; the function is the same, to more digits."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.view, torch.frombuffer):  # bytes of a file, read as what they are
            return func(*args, **(kwargs or {}))
        func = torch.Tensor.double if func is torch.Tensor.float else func
        wide = [torch.float64 if value is torch.float32 else value for value in args]
        named = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return func(*wide, **named)


@contextmanager
def float64() -> Iterator[None]:
    """Everything is created and computed in float64, without gradients."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64(), torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(before)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference by the largest value; infinite for another shape or a value that is not finite."""
    if ours.shape != theirs.shape or not (ours.isfinite().all() and theirs.isfinite().all()):
        return float("inf")
    if not theirs.numel():
        return 0.0
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-300))


def tokens_error(ours: Tensor, definitions: Mapping[str, Tensor]) -> tuple[float, str]:
    """The error against the library's own tokens, or those of another definition if these are met.

    A pool that normalizes the mean replaces the last norm in some libraries and not in others.
    """
    errors = {name: relative_error(ours, theirs) for name, theirs in definitions.items()}
    first = next(iter(errors))
    met = [name for name, error in errors.items() if error <= TOLERANCE]
    chosen = met[0] if met else first
    return errors[chosen], "" if chosen == first else f"tokens {chosen}"


def names_candidate(message: str, name: str) -> bool:
    """Whether a message has this architecture as a whole word."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", message) is not None


def verdict_of(errors: Sequence[Mapping[str, float]], said: Sequence[str]) -> dict[str, str]:
    """Right or wrong by the errors at each size.

    Right tokens with a pooled output that is left out, in a message that says so, are a refusal of that output.
    """
    worst = {key: max(found.get(key, 0.0) for found in errors) for key in ("tokens", "logits")}
    if max(worst.values()) <= TOLERANCE:
        return {"verdict": "right"}
    ignored = [line for line in said if re.match(r"ignored .*(pooler|head|projection|classifier)", line)]
    if worst["tokens"] <= TOLERANCE and ignored:
        return {"verdict": "refused", "code": "ignored", "stage": "logits", "message": "; ".join(ignored)}
    return {"verdict": "wrong"}


def verdict_of_refusal(way: str, candidate: str, message: str) -> str:
    asked = way == "bare" and candidate
    return "unnamed" if asked and not names_candidate(message, candidate) else "refused"


class Messages(logging.Handler):
    """Keeps what is logged while a model is loaded."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def messages() -> Iterator[list[str]]:
    log, handler = logging.getLogger("vitral"), Messages()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def judge(way: str, subject: Subject) -> dict[str, Any]:
    """One record: what ours makes of the file, as JSON."""
    path, options = subject.ways[way]
    started = time.monotonic()
    sizes = [f"{answers.images.shape[-2]}x{answers.images.shape[-1]}" for answers in subject.answers]
    record: dict[str, Any] = {"sizes": sizes, "notes": list(subject.notes), "traits": list(subject.traits)}
    stage, said = "load", list[str]()
    try:
        with messages() as said:
            model = vitral.load(path, **options).model.double()
        found, remarks = [], []
        for answers, size in zip(subject.answers, sizes, strict=True):
            stage = size
            errors, remark = compare(model, answers)
            found.append(errors)
            remarks += [remark] if remark else []
        record |= {"errors": found, "notes": [*subject.notes, *dict.fromkeys(remarks)], **verdict_of(found, said)}
    except VitralError as error:
        record |= {
            "verdict": verdict_of_refusal(way, subject.candidate, str(error)),
            "code": error.code,
            "stage": stage,
        }
        record |= {"message": _without(str(error), path)}
    except Exception as error:
        record |= {"verdict": "crashed", "code": type(error).__name__, "stage": stage}
        record |= {"message": _without(str(error), path)}
    record["assumed"] = [line for line in said if line.startswith("assumed")]
    record["seconds"] = round(time.monotonic() - started, 2)
    return record


def compare(model: Model, answers: Answers) -> tuple[dict[str, float], str]:
    """The relative errors of ours, and a remark where tokens are compared by another definition."""
    with float64():
        features = model.forward_features(answers.images)
        tokens = torch.cat([features.cls, features.registers, features.patches], dim=1)
        error, remark = tokens_error(tokens, answers.tokens)
        errors = {"tokens": error}
        if answers.logits is not None:
            errors["logits"] = relative_error(model(answers.images), answers.logits)
    return errors, remark


def _without(message: str, path: Path) -> str:
    """The message without the folder of this machine."""
    return message.replace(f"{path}/", "").replace(f"{path.parent}/", "").replace(str(path), path.name)
