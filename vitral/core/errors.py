"""What can go wrong that the user can mend.

VitralError            exit 1   caught by whoever wants them all
├── ConfigError        exit 2   a setting is unknown, of the wrong type, or at odds with another (a ValueError too)
├── DataError          exit 3   an image, a label or a data set is not what it should be (a ValueError too)
├── WeightsError       exit 1   a weight file is damaged or does not fit the model (a ValueError too)
└── ServeError         exit 1   the server cannot start or cannot answer

What cannot happen is an `assert`, never one of these.
"""

import copyreg
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar


class VitralError(Exception):
    """What went wrong, where, and what to do about it; `code` is stable, for programs and tests to rely on."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, code: str, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.where = where
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Python's own way to copy an exception would call its class without the code."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def __str__(self) -> str:
        """`where: what; remedy` in one line, without the parts that are empty."""
        place = f"{self.where}: " if self.where else ""
        advice = f"; {self.hint}" if self.hint else ""
        return f"{place}{self.message}{advice}"


class ConfigError(VitralError, ValueError):
    """A setting that cannot be used, or several of them: see `problems`."""

    exit_code = 2
    _parts: tuple["ConfigError", ...] = ()

    @classmethod
    def join(cls, problems: Sequence["ConfigError"]) -> "ConfigError":
        """All the problems in one error; a single problem is returned as it is."""
        if len(problems) == 1:
            return problems[0]
        lines = "".join(f"\n  {problem}" for problem in problems)
        error = cls(f"{len(problems)} settings are wrong:{lines}", code="config.several")
        error._parts = tuple(problems)
        return error

    @property
    def problems(self) -> tuple["ConfigError", ...]:
        """Each wrong setting by itself; the error alone when it is about one."""
        return self._parts or (self,)

    def within(self, path: str) -> "ConfigError":
        """The same error seen from outside, its fields named from `path` on: `heads` in `mixer` is `mixer.heads`."""
        if not path:
            return self
        return ConfigError.join([problem._below(path) for problem in self.problems])

    def _below(self, path: str) -> "ConfigError":
        where = f"{path}.{self.where}" if self.where else path
        return ConfigError(self.message, code=self.code, where=where, hint=self.hint)


class DataError(VitralError, ValueError):
    """An image, a label or a data set that is not what it should be."""

    exit_code = 3


class WeightsError(VitralError, ValueError):
    """Weights that are damaged, or that do not fit the model."""


class ServeError(VitralError):
    """A server that cannot start or cannot answer."""


def format_choices(choices: Iterable[object]) -> str:
    """`a, b or c`: the choices in the order given, as a reader would say them."""
    *most, last = map(str, choices)
    return f"{', '.join(most)} or {last}" if most else last


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`did you mean 'patch'?`, or nothing when no choice is near the word."""
    near = get_close_matches(word, list(choices), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def suggest_choice(word: str, choices: Collection[str]) -> str:
    """A remedy for a word that is none of the choices: the nearest one, or all of them when none is near."""
    return did_you_mean(word, choices) or f"choose from {format_choices(choices)}"
