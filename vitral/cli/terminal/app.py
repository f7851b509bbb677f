"""The command line: global options, errors in three lines, exit codes, progress."""

import atexit
import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from shutil import which
from time import monotonic
from typing import Annotated, Any, TypeVar

import typer
from typer.models import CommandInfo

from vitral import __version__
from vitral.cli.terminal.help import VERBS, WIDEST, Program, Verb
from vitral.cli.terminal.text import PrintableFormatter, error_lines
from vitral.cli.terminal.usage import usage_error
from vitral.core.errors import ConfigError, VitralError

log = logging.getLogger("vitral")
Command = TypeVar("Command", bound=Callable[..., Any])

atexit.register(gc.freeze)  # skips a last garbage collection over all of torch: 0.25 s

# Global options that may also follow the verb, and one of them with a value.
GLOBAL_OPTIONS = ("--allow-outside", "--debug", "--no-verify", "--offline", "--quiet", "--trust")
GLOBAL_VALUE = "--require-signature"
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # in messages of torch
PIPE_CLOSED = 141  # the reader of stdout went away, as `head` does: the exit code that shells give for SIGPIPE
NOTEBOOK = "JPY_PARENT_PID"  # which Jupyter sets for its kernels
LINE_SECONDS = 10.0  # between two lines of progress
NO_HOME = "Could not determine home directory"  # message of pathlib

# Typer's rich help would double the time of --help.
app = typer.Typer(
    name="vitral",
    cls=Program,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    subcommand_metavar="VERB ...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
)


def verb(*examples: str) -> Callable[[Command], Command]:
    """Register a function as the verb of its name; the help ends with the examples."""

    def register(command: Command) -> Command:
        VERBS.register(CommandInfo(cls=Verb, epilog="\n".join(examples), callback=command))
        return command

    return register


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"vitral {__version__}")
        raise typer.Exit


TRUST_HELP = "Import classes of your own that settings, recipes or models name as file.py:Class; this runs their code."
OUTSIDE_HELP = "Read files outside of the folder of a manifest or table that names them."
NO_VERIFY_HELP = "Open models and exports without checking their files against the manifest."
SIGNATURE_HELP = "Open only what the owner of this public key has signed (vitral sign)."


@app.callback()
def vitral(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", callback=_version)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log errors only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Read hub models from the cache only.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST_HELP)] = False,
    allow_outside: Annotated[bool, typer.Option("--allow-outside", help=OUTSIDE_HELP)] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help=NO_VERIFY_HELP)] = False,
    require_signature: Annotated[str, typer.Option(metavar="FILE", help=SIGNATURE_HELP, show_default="none")] = "",
) -> None:
    """Train, explain, evaluate and export Vision Transformers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler])
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read by huggingface_hub, also in worker processes
    from vitral.core.custom import trust_from_now_on  # after --help, which does not need it

    trust_from_now_on(trust)
    if allow_outside or "vitral.core.files" in sys.modules:
        from vitral.core.files import allow_outside_from_now_on

        allow_outside_from_now_on(allow_outside)
    if no_verify or require_signature or "vitral.core.manifest" in sys.modules:  # which takes a moment to import
        from vitral.core.manifest import set_file_policy

        set_file_policy(not no_verify, require_signature)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit with its code."""
    if NOTEBOOK in os.environ:  # the output of `!vitral` there looks like a terminal, but cannot move the cursor
        os.environ.setdefault("TTY_COMPATIBLE", "0")  # read by rich
    _replace_closed_streams()
    arguments = _reorder(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            # A fixed name, also for python -m vitral: that of the program that the shell completes.
            code = app(arguments, prog_name="vitral", standalone_mode=False)
        finally:
            sys.stdout.flush()  # a closed pipe is found here, not while Python shuts down
        sys.exit(code if isinstance(code, int) else 0)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer has handled it
            sys.exit(PIPE_CLOSED)
        raise
    except KeyboardInterrupt:  # before typer handles it
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # typer's, for no arguments at all
            typer.echo(str(error), err=True)
            sys.exit(ConfigError.exit_code)
        reported = error if isinstance(error, VitralError) else _unexpected(error, arguments)
        if "--debug" in arguments:
            traceback.print_exc()
        else:
            _print_error(reported, _place(reported.where, arguments))
        sys.exit(reported.exit_code)


def _replace_closed_streams() -> None:
    """Replace streams that the caller closed, which are None in Python, by the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            null = open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115, until exit
            setattr(sys, name, null)


def _reorder(arguments: Sequence[str]) -> list[str]:
    """The arguments with global options moved in front of the verb, where typer expects them."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    early: list[str] = []
    late: list[str] = []
    rest = iter(arguments[:end])
    for argument in rest:
        if argument == GLOBAL_VALUE:
            early += [argument, *islice(rest, 1)]
        else:
            (early if argument in GLOBAL_OPTIONS or argument.startswith(f"{GLOBAL_VALUE}=") else late).append(argument)
    return [*early, *late, *arguments[end:]]


def _unexpected(error: Exception, arguments: Sequence[str]) -> VitralError:
    """Any other exception as a VitralError."""
    if isinstance(error, typer.TyperException):
        return usage_error(error)
    # Python and numpy raise MemoryError; torch raises a RuntimeError that can only be recognized by its message.
    is_torch = isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)
    if is_torch or isinstance(error, MemoryError):
        hint = "use smaller batches (--batch-size) or images (--image-size)"
        return VitralError("not enough memory", code="machine.out_of_memory", hint=hint)
    if isinstance(error, RuntimeError) and str(error).startswith(NO_HOME):
        unknown = ", ".join(each for each in arguments if each.startswith("~") and os.path.expanduser(each) == each)
        message, hint = "this user has no home folder", "check the path, or give it without ~"
        return ConfigError(message, code="config.not_found", where=unknown, hint=hint)
    place = traceback.extract_tb(error.__traceback__)[-1]
    message, where = f"{type(error).__name__}: {error}", f"{place.filename}:{place.lineno}"
    hint = "run again with --debug for the traceback, and report it if this is a bug in vitral"
    return VitralError(message, code="internal.unexpected", where=where, hint=hint)


def _place(where: str, arguments: Sequence[str]) -> str:
    """The option that set a field, if one was given: `--image-size` for model.image_size, `--models` for model."""
    if where in arguments:  # a value, such as a path that is called out
        return where
    option = f"--{where.rpartition('.')[2].replace('_', '-')}"
    given = {argument.partition("=")[0] for argument in arguments}
    return next((name for name in (option, f"{option}s") if name in given), where)


def _print_error(error: VitralError, where: str) -> None:
    """Print code and message, where, and hint on stderr; rich omits color in a pipe or with NO_COLOR."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    first, *rest = error_lines(error.code, error.message, where, error.hint)
    console.print(Text(first, style="red"), soft_wrap=True)
    for line in rest:
        console.print(Text(line), soft_wrap=True)


def program() -> str:
    """What to type to run vitral again: its name where the shell finds it, else as it was started."""
    if which("vitral"):
        return "vitral"
    return sys.argv[0] if os.path.basename(sys.argv[0]) == "vitral" else "python -m vitral"


def parse_numbers(text: str, option: str, least: int) -> list[int]:
    """The whole numbers of an option such as `--batches 1,8,32`."""
    for each in text.split(","):
        if not each.strip().isdecimal() or int(each) < least:
            message = f"expected numbers of at least {least}, such as 1,2,4, got {each!r}"
            raise ConfigError(message, code="config.wrong_type", where=option)
    return [int(each) for each in text.split(",")]


@contextmanager
def progress_bar(message: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show progress on stderr; call the result with the number of items done. Hidden with --quiet.

    A bar on a terminal; in a pipe or a notebook a line now and then.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _progress_lines(message, total)
        return
    hidden = not log.isEnabledFor(logging.INFO)
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(message, total=total)
        yield lambda count: progress.advance(task, count)


def _progress_lines(message: str, total: int) -> Callable[[int], None]:
    """Logs the progress every few seconds."""
    done, logged = 0, monotonic()

    def advance(count: int) -> None:
        nonlocal done, logged
        done += count
        if done < total and monotonic() - logged >= LINE_SECONDS:
            logged = monotonic()
            log.info(f"{message}: {done:,} of {total:,}")

    return advance
