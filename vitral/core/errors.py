"""Errors that the user can fix.

VitralError            exit 1   the base class of all
├── ConfigError        exit 2   a setting is unknown, of the wrong type, or conflicts with another (a ValueError too)
├── DataError          exit 3   an image, a label or a dataset is invalid (a ValueError too)
├── WeightsError       exit 1   a weight file is damaged or does not fit the model (a ValueError too)
└── ServeError         exit 1   the server refuses a request, and the client learns why

A path that does not exist exits 3, whatever should have been there: its code ends in `.not_found`.

What cannot happen is an `assert`, never one of these.
"""

import copyreg
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePath
from typing import Any

NOT_FOUND = 3  # the exit code


class VitralError(Exception):
    """What went wrong, where, and what to do about it. Programs and tests may rely on `code`."""

    exit_code: int = 1  # of the command

    def __init__(self, message: str, *, code: str, where: str | PurePath = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.where = str(where)
        self.hint = hint
        if code.endswith(".not_found"):
            self.exit_code = NOT_FOUND

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling the constructor, which needs the code."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def __str__(self) -> str:
        """`where: message; hint` in one line, without the empty parts."""
        where = f"{self.where}: " if self.where else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{where}{self.message}{hint}"


class ConfigError(VitralError, ValueError):
    """One or several invalid settings: see `problems`."""

    exit_code = 2
    _parts: tuple["ConfigError", ...] = ()

    @classmethod
    def join(cls, problems: Sequence["ConfigError"]) -> "ConfigError":
        """All problems as one error; a single problem is returned unchanged."""
        if len(problems) == 1:
            return problems[0]
        lines = "".join(f"\n  {problem}" for problem in problems)
        error = cls(f"{len(problems)} settings are wrong:{lines}", code="config.several")
        error._parts = tuple(problems)
        return error

    @property
    def problems(self) -> tuple["ConfigError", ...]:
        """The error of each invalid setting."""
        return self._parts or (self,)

    def within(self, path: str) -> "ConfigError":
        """The same error with its fields prefixed by `path`: `heads` in `mixer` becomes `mixer.heads`."""
        return ConfigError.join([problem._below(path) for problem in self.problems])

    def _below(self, path: str) -> "ConfigError":
        where = ".".join(filter(None, [path, self.where]))
        return ConfigError(self.message, code=self.code, where=where, hint=self.hint)


class DataError(VitralError, ValueError):
    """An invalid image, label or dataset."""

    exit_code = 3


class WeightsError(VitralError, ValueError):
    """Weights that are damaged or do not fit the model."""


class ServeError(VitralError):
    """A request that the server refuses."""


def format_choices(choices: Iterable[object]) -> str:
    """The choices in the order given: `a, b or c`."""
    *most, last = map(str, choices)
    return f"{', '.join(most)} or {last}" if most else last


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`did you mean 'patch'?`, or nothing if no choice is close to the word."""
    from difflib import get_close_matches  # not needed unless there is an error

    near = get_close_matches(word, list(choices), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def suggest_choice(word: str, choices: Collection[str]) -> str:
    """A hint for a word that is none of the choices: the closest one, or else all of them."""
    return did_you_mean(word, choices) or f"choose from {format_choices(choices)}"
