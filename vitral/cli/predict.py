"""The verb predict."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple

import typer

from vitral.cli.app import app
from vitral.core.errors import ConfigError, DataError, format_choices
from vitral.core.imports import pause_gc

if TYPE_CHECKING:
    from vitral.inference.batches import Batch
    from vitral.inference.graph.token_merging import Merging
    from vitral.inference.predictor import Predictor
    from vitral.inference.writers import Format, Sink

log = logging.getLogger("vitral")

MODEL_HELP = "A run, a bundle, weights of another library, or a folder of vitral export."
IMAGE_HELP = (
    "Files, folders, patterns in quotes, manifests (.csv, .tsv or .jsonl with a column path), tar shards, a name such "
    "as sample, or - for paths on stdin."
)
FORMAT_HELP = "table, json, jsonl or csv; by itself a table, or what FILE of --out ends in."
FEATURES_HELP = "Write the vectors before the head to a .npz or .parquet, and name no classes."
SHARD_HELP = "Take one of N shares of the images, such as 2/8."
OUT_HELP = "Write there, all or nothing; if the file is there already, nothing is done."
ENGINE_HELP = "auto, eager, compiled, onnxruntime or openvino."
MERGE_HELP = "Patches that every layer merges with others like them: faster, and not quite the same answers."


class Target(NamedTuple):
    """Where the output goes: to stdout, or to a file that an option names."""

    option: str
    name: str

    @property
    def path(self) -> Path:
        return Path(self.name).expanduser()


@app.command()
def predict(  # noqa: PLR0913, PLR0917, one option a wish
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    image: Annotated[list[str], typer.Argument(metavar="IMAGE", help=IMAGE_HELP)],
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Classes to name for each image.")] = 5,
    format: Annotated[str, typer.Option(metavar="NAME", help=FORMAT_HELP)] = "",
    features: Annotated[str, typer.Option(metavar="FILE", help=FEATURES_HELP)] = "",
    shard: Annotated[str, typer.Option(metavar="I/N", help=SHARD_HELP)] = "",
    out: Annotated[str, typer.Option(metavar="FILE", help=OUT_HELP)] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first file that cannot be read.")] = False,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Images at a time.")] = 32,
    engine: Annotated[str, typer.Option(metavar="NAME", help=ENGINE_HELP)] = "auto",
    merge: Annotated[int, typer.Option(metavar="N", min=0, help=MERGE_HELP)] = 0,
) -> None:
    """Name what is on find_images: answers on stdout, talk on stderr.

    Files that cannot be read are told and passed by, and the exit code is then 3.
    """
    with pause_gc():
        from vitral.core.machine import keep_freed_memory
        from vitral.inference.batches import read_batches
        from vitral.inference.inputs import find_images, refuse_unlisted
        from vitral.inference.output_shards import WHOLE, open_output, output_exists, parse_shard
        from vitral.inference.predictor import Predictor
        from vitral.inference.predictor import predict as predicted

    share = parse_shard(shard) if shard else WHOLE
    target = Target("--features", features) if features else Target("--out", out)
    if features:
        _check_features(features, {"--top": _is_given(context, "top"), "--format": bool(format), "--out": bool(out)})
    wanted = _format(format, out)
    if target.name and output_exists(target.path, target.option):
        log.info(f"{target.name} is there already, so nothing was done; remove it to have it made anew")
        return
    listed = find_images(image, sys.stdin.buffer if sys.stdin else None)  # a daemon has none
    found = (each for each in (refuse_unlisted(listed) if target.name else listed) if share.holds(each.name))
    with open_output(target.path, target.option) if target.name else nullcontext(sys.stdout.buffer) as file:
        keep_freed_memory()
        with pause_gc():
            predictor = Predictor(model, engine=engine, merging=_merging(merge))  # and torch, but for an export
        see = predictor.features if features else predictor.logits
        with _sink(file, target, wanted, top, predictor) as sink, _told(strict) as hear:
            count = predicted(see, read_batches(found, predictor.bundle.preprocessing, batch), sink, hear)
    if target.name:
        log.info(f"{count.answered:,} find_images in {target.name}")
    if count.failed:
        message = f"{count.failed:,} of {count.answered + count.failed:,} files could not be read"
        raise DataError(message, code="data.bad_files", hint="they are named above; mend or remove them")


def _merging(per_layer: int) -> "Merging | None":
    if not per_layer:
        return None
    from vitral.inference.graph.token_merging import TokenMerging

    return TokenMerging(per_layer=per_layer)


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was written, be it with the value that it has by itself."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_features(file: str, given: Mapping[str, bool]) -> None:
    """Refuse a file that cannot hold features, and options that say nothing of them."""
    from vitral.inference.writers import check_features_path

    for option in (option for option, is_given in given.items() if is_given):
        message = f"{option} is for classes, and --features writes a file of its own"
        hint = "leave it out, or ask for classes and features one after the other"
        raise ConfigError(message, code="config.conflict", where=option, hint=hint)
    check_features_path(Path(file))


def _format(format: str, out: str) -> "Format":
    """The format that was asked for, or that the ending of a file tells, or a table."""
    from vitral.data.datasets.files import suffix
    from vitral.inference.writers import FORMAT_BY_SUFFIX, parse_format

    if format:
        return parse_format(format)
    if not out:
        return "table"
    if suffix(out) not in FORMAT_BY_SUFFIX:
        message = f"expected a FILE that ends in {format_choices(FORMAT_BY_SUFFIX)}, or --format, got {out!r}"
        raise ConfigError(
            message, code="config.unknown_format", where="--out", hint="add --format jsonl, or another one"
        )
    return FORMAT_BY_SUFFIX[suffix(out)]


def _sink(
    file: BinaryIO, target: Target, wanted: "Format", top: int, predictor: "Predictor"
) -> "AbstractContextManager[Sink]":
    """What takes the numbers: a file of features, or the names of classes."""
    from vitral.inference.writers import answers, vectors

    bundle = predictor.bundle
    if target.option == "--features":
        return vectors(file, target.path, predictor.width)
    if not bundle.classes:
        message = f"this model was made for {bundle.task}, and names no classes"
        hint = "ask for its features: --features FILE.npz"
        raise ConfigError(message, code="config.unsupported", where="MODEL", hint=hint)
    return answers(file, wanted, bundle.classes, top)


@contextmanager
def _told(strict: bool) -> "Iterator[Callable[[Batch], None]]":
    """Tell of bad files by name, or stop at the first; and count on stderr where only the talk is on the terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    from vitral.html.page import printable

    console = Console(stderr=True)
    hidden = not console.is_terminal or sys.stdout.isatty() or not log.isEnabledFor(logging.INFO)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} images"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=None)

        def hear(batch: "Batch") -> None:
            for place, error in batch.failed.items():
                if strict:
                    raise error
                advice = f"; {error.hint}" if error.hint else ""
                line = f"{printable(batch.names[place])}: {printable(error.message)}{advice}"
                progress.console.print(Text(line), soft_wrap=True)
            progress.advance(task, len(batch.names))

        yield hear
