"""The program around the verbs: its options, its errors in three lines, its exit codes."""

import atexit
import gc
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from vitral import __version__
from vitral.core.errors import ConfigError, VitralError

log = logging.getLogger("vitral")

atexit.register(gc.freeze)  # else Python looks through all of torch once more as it leaves: a quarter of a second

ANYWHERE = ("--debug", "--offline", "--quiet")  # options of the program that may also follow the verb
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # as torch says it
NO_HOME = "Could not determine home directory"  # as pathlib says it

# Typer's boxed help would double the time that --help takes.
app = typer.Typer(
    name="vitral",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vitral {__version__}")
        raise typer.Exit


@app.callback()
def vitral(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", callback=_version)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Take models of the hub from the cache alone.")] = False,
) -> None:
    """Vision Transformers: train, understand and serve them."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # the hub's own word for it, which workers inherit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and leave the process with its exit code."""
    _open_closed()
    words = _in_order(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            app(words)
        finally:
            sys.stdout.flush()  # a reader that went away shows here, not while Python shuts down
    except KeyboardInterrupt:  # in the first moments, before typer looks for one
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        mendable = error if isinstance(error, VitralError) else _fault(error, words)
        if "--debug" in words:
            traceback.print_exc()
        else:
            _complain(mendable)
        sys.exit(mendable.exit_code)


def _open_closed() -> None:
    """Let what is written to a stream that the caller closed go nowhere; Python has None for such a stream."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115, to the end
            setattr(sys, name, nowhere)


def _in_order(words: Sequence[str]) -> list[str]:
    """The words with the options of the program moved in front of the verb, where typer looks for them."""
    end = words.index("--") if "--" in words else len(words)
    early = [word for word in words[:end] if word in ANYWHERE]
    return [*early, *(word for word in words[:end] if word not in ANYWHERE), *words[end:]]


def _fault(error: Exception, words: Sequence[str]) -> VitralError:
    """An error that nobody foresaw, told like the others."""
    if _is_out_of_memory(error):
        hint = "use smaller batches (--batch-size) or images (--image-size)"
        return VitralError("not enough memory for this", code="machine.out_of_memory", hint=hint)
    if isinstance(error, RuntimeError) and str(error).startswith(NO_HOME):
        lost = [word for word in words if word.startswith("~") and os.path.expanduser(word) == word]
        message = "there is no such user's home folder"
        hint = "check the path, or write it without ~"
        return ConfigError(message, code="config.not_found", where=", ".join(lost), hint=hint)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return VitralError(
        f"{type(error).__name__}: {error}",
        code="internal.unexpected",
        where=f"{place.filename}:{place.lineno}",
        hint="run it again with --debug for the whole story, and report it if vitral is at fault",
    )


def _is_out_of_memory(error: Exception) -> bool:
    """Python and numpy have a type for it; torch's allocators have words alone."""
    told = isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
    return told or isinstance(error, MemoryError)


def _complain(error: VitralError) -> None:
    """Up to three lines on stderr: code and what, where, what to do. Rich leaves color out for a pipe or NO_COLOR."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    first = f"error[{error.code}]"
    for label, part, style in ((first, error.message, "red"), ("where", error.where, ""), ("hint", error.hint, "")):
        if part:
            console.print(Text(f"{label}: {part}", style=style), soft_wrap=True)
