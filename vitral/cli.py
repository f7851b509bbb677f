"""The command line: one verb a function, nothing more.

stdout carries data, stderr the talk. Only what every verb needs is imported here; torch waits until work starts.
"""

import logging
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitral import __version__
from vitral.errors import ConfigError, DataError, VitralError

if TYPE_CHECKING:
    from vitral.run.outcome import Run

log = logging.getLogger("vitral")

DATA_HELP = (
    "A folder, a manifest, shards, Parquet or Arrow files, or a name: sample, fashion-mnist, mnist, cifar10, cifar100, "
    "digits."
)
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)]
RECIPE_HELP = (
    "A recipe; by itself one is chosen by the data. There are sample, fashion_mnist, fashion_masked, fashion_finetune, "
    "fashion_tenth, cifar10, small_hundreds, small_thousands, paper_imagenet, paper_imagenet21k, paper_jft, "
    "paper_masked, finetune_imagenet, finetune_cifar, finetune_flowers, finetune_vtab, augreg_imagenet, "
    "augreg_imagenet21k, plain_imagenet."
)
Settings = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Change a setting, such as position=rope2d; may be repeated.",
        default_factory=list,
        show_default=False,
    ),
]
Root = Annotated[str, typer.Option(metavar="FOLDER", help="Where the files of a set known by name are.")]

ANYWHERE = ("--debug", "--quiet")  # options of the program that may also follow the verb

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


def _cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@app.callback()
def vitral(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", callback=_version)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Vision Transformers: train, understand and serve them."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    log.setLevel(logging.ERROR if quiet else logging.INFO)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model of the paper, such as B/16 or R50+L/32.")],
    set_: Settings,
    image: Annotated[str, typer.Option(metavar="SIZE", help="The size of the images: 384 or 224x320.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Show every shape, parameter, multiply-add and byte of a model."""
    from vitral.explain.describe import describe as described

    size = [f"image={image}"] if image else []
    description = described(name, *size, *set_)
    typer.echo(description.to_json() if json else description)


@app.command()
def train(  # noqa: PLR0913, PLR0917, one option a wish
    set_: Settings,
    data: Annotated[str, typer.Argument(metavar="[DATA]", help=DATA_HELP)] = "",
    resume: Annotated[str, typer.Option(metavar="RUN", help="Go on with a run that was stopped.")] = "",
    recipe: Annotated[str, typer.Option(metavar="NAME", help=RECIPE_HELP)] = "",
    model: Annotated[str, typer.Option(metavar="NAME", help="A model of the paper, such as S/16.")] = "",
    from_: Annotated[str, typer.Option("--from", metavar="WEIGHTS", help="A run or a bundle to start from.")] = "",
    image: Annotated[str, typer.Option(metavar="SIZE", help="The size of the images: 64 or 224x320.")] = "",
    epochs: Annotated[str, typer.Option(metavar="N", help="How many times over the images.")] = "",
    batch: Annotated[str, typer.Option(metavar="N", help="Images a step, of all processes together.")] = "",
    lr: Annotated[str, typer.Option(metavar="RATE", help="The rate of learning at its peak.")] = "",
    task: Annotated[str, typer.Option(metavar="KIND", help="classify, or masked, which needs no labels.")] = "",
    seed: Annotated[str, typer.Option(metavar="N", help="Another seed is another run.")] = "",
    device: Annotated[str, typer.Option(metavar="KIND", help="cpu, cuda, mps or auto.")] = "",
    workers: Annotated[str, typer.Option(metavar="N", help="Processes that read images.")] = "",
    out: Annotated[str, typer.Option(metavar="FOLDER", help="The new run folder; by itself runs/NAME.")] = "",
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Plan for so much time: 90s, 10m, 1h30m.")] = "",
    root: Root = "",
) -> None:
    """Train or fine-tune a model on a folder of images, and write a run folder with a report.

    Ctrl-C, or a SIGTERM, saves after the step at hand and prints the line that goes on.
    """
    from vitral.run.start import resume as resumed
    from vitral.run.start import train as trained

    words = {"from": from_, "image": image, "epochs": epochs, "batch": batch, "lr": lr, "task": task}
    words |= {"seed": seed, "device": device, "workers": workers}
    settings = [f"{name}={value}" for name, value in words.items() if value]
    words |= {"DATA": data, "recipe": recipe, "model": model, "out": out, "time-limit": time_limit, "root": root}
    others = [*(name for name, value in words.items() if value), *(["set"] if set_ else [])]
    if resume:
        if others:
            what = f"a run goes on as it began, so --resume stands alone; got {', '.join(others)} too"
            raise ConfigError(what, where="--resume", remedy=f"vitral train --resume {shlex.quote(resume)}")
        _tell(resumed(resume))
        return
    if not data:
        raise ConfigError("no data is named", where="DATA", remedy="give a folder of images, or sample")
    settings += set_
    _tell(trained(data, *settings, recipe=recipe, model=model, root=root, out=out, time_limit=time_limit))


@app.command()
def demo(
    out: Annotated[str, typer.Option(metavar="FOLDER", help="The new run folder; by itself runs/sample.")] = "",
) -> None:
    """Train on the bundled images, and show what comes of it."""
    from vitral.run.demo import demo as trained
    from vitral.run.demo import told

    run = trained(out)
    if run.signal:
        _tell(run)
    typer.echo(told(run))


@app.command()
def pack(
    data: Data,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder for the shards: new, empty, or begun before.")],
    shard_size: Annotated[str, typer.Option(metavar="SIZE", help="How large a shard may grow.")] = "256MB",
    root: Root = "",
) -> None:
    """Write a data set as tar shards (WebDataset) with an index; run it again to go on after a stop."""
    from vitral.data.sources.pack import pack as packed
    from vitral.data.sources.shards.plan import byte_count
    from vitral.data.sources.source import open_data

    most = byte_count(shard_size)
    samples = open_data(data, root=root)
    with _bar("packing", len(samples.items)) as advance:
        index = packed(samples, Path(out).expanduser(), most, advance)
    size = sum(shard.bytes for shard in index.shards)
    log.info(f"packed {len(samples.items):,} images into {len(index.shards):,} shards of {size / 1e6:,.1f} MB in all")
    typer.echo(out)


@app.command()
def check(
    data: Data,
    workers: Annotated[
        int, typer.Option(help="Processes that read files.", min=0, default_factory=_cores, show_default="one a core")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with every example.")] = False,
    html: Annotated[str, typer.Option(metavar="PAGE", help="Also write a page with the pictures at fault.")] = "",
    root: Root = "",
) -> None:
    """Find what would make accuracy wrong: damage, copies, leaks, bad labels, imbalance.

    Ends with 3 where something is an error: a file that cannot be read, one picture in two splits or under two
    labels. Warnings and notes end with 0.
    """
    from json import dumps

    from rich.console import Console

    from vitral.data import open_data
    from vitral.data.doctor.check import check as checked
    from vitral.data.doctor.diagnosis import as_data
    from vitral.data.doctor.page import write_page
    from vitral.data.doctor.report import as_text, show

    diagnosis = checked(open_data(data, root=root), workers)
    if json:
        typer.echo(dumps(as_data(diagnosis), indent=2))
    else:
        show(as_text(diagnosis), Console())
    if html:  # last: where it cannot be written, the answer is not lost
        write_page(Path(html).expanduser(), diagnosis)
    if diagnosis.count("error"):
        raise typer.Exit(DataError.exit_code)


def _tell(run: "Run") -> None:
    """One summary, the folder on stdout; a run that a signal stopped ends with that signal's code."""
    if not int(os.environ.get("RANK", "0")):  # of many processes one speaks for all
        for line in run.summary():
            log.log(logging.ERROR if run.signal else logging.INFO, line)  # --quiet hides no way to go on
        typer.echo(run.folder.path)
    if run.signal:
        raise typer.Exit(128 + run.signal)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and leave the process with its exit code."""
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
        mendable = error if isinstance(error, VitralError) else _fault(error)
        if "--debug" in words:
            traceback.print_exc()
        else:
            _complain(mendable)
        sys.exit(mendable.exit_code)


def _in_order(words: Sequence[str]) -> list[str]:
    """The words with the options of the program moved in front of the verb, where typer looks for them."""
    end = words.index("--") if "--" in words else len(words)
    early = [word for word in words[:end] if word in ANYWHERE]
    return [*early, *(word for word in words[:end] if word not in ANYWHERE), *words[end:]]


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, to be advanced by so many; nothing is drawn for a pipe or with --quiet."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = not console.is_terminal or not log.isEnabledFor(logging.INFO)
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


def _fault(error: Exception) -> VitralError:
    """An error that nobody foresaw, told like the others."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return VitralError(
        f"{type(error).__name__}: {error}",
        where=f"{place.filename}:{place.lineno}",
        remedy="run it again with --debug for the whole story, and report it if vitral is at fault",
    )


def _complain(error: VitralError) -> None:
    """Up to three lines on stderr: what, where, what to do. Rich leaves colour out for a pipe and for NO_COLOR."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    for label, part, style in (("error", error.what, "red"), ("where", error.where, ""), ("hint", error.remedy, "")):
        if part:
            console.print(Text(f"{label}: {part}", style=style), soft_wrap=True)
