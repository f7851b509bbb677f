"""`vitral predict`."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import verb
from vitral.cli.terminal.completion import ENGINES, PREDICTION_FORMATS, complete_from, complete_weights
from vitral.cli.terminal.options import option
from vitral.core.errors import ConfigError, DataError, format_choices
from vitral.core.imports import pause_gc

if TYPE_CHECKING:
    from vitral.inference.batches import Batch
    from vitral.inference.writers import Format

log = logging.getLogger("vitral")

MODEL_HELP = "A run, a bundle, weights of another library, or a folder that vitral export wrote."
IMAGE_HELP = (
    "Image files, folders, patterns in quotes, manifests (.csv, .tsv or .jsonl with a column path), tar shards, a "
    "named dataset such as sample, or - for paths on stdin."
)
FORMAT_HELP = f"The output format: {format_choices(PREDICTION_FORMATS)}."
FORMAT_DEFAULT = "by the suffix of --out, else table"
FEATURES_HELP = "Write the features before the head, instead of classes, to this .npz or .parquet file."
SHARD_HELP = "Predict only one of N shards of the images, such as 2/8 for the second of 8."
OUT_HELP = "Write to this file, such as answers.csv, atomically. If it exists, nothing is done."
ENGINES_OR_AUTO = ("auto", *ENGINES)
ENGINE_HELP = f"The engine: {format_choices(ENGINES_OR_AUTO)}. auto measures which is the fastest."
MERGE_HELP = "Tokens that every layer merges with similar ones, such as 8: faster, slightly different predictions."


@verb(
    "vitral predict runs/photos cat.jpg",
    "vitral predict runs/photos photos/ --top 1 --out answers.csv",
    "vitral predict runs/photos photos/ --features features.npz",
)
def predict(  # noqa: PLR0913, PLR0917, one parameter per option
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=complete_weights)],
    image: Annotated[list[str], typer.Argument(metavar="IMAGE", help=IMAGE_HELP, autocompletion=options.complete_data)],
    top: Annotated[int, option("N", "Number of classes to print for each image.", min=1)] = 5,
    format: Annotated[str, option("NAME", FORMAT_HELP, FORMAT_DEFAULT, complete_from(PREDICTION_FORMATS))] = "",
    features: Annotated[str, option("FILE", FEATURES_HELP, "classes")] = "",
    shard: Annotated[str, option("I/N", SHARD_HELP, "all images")] = "",
    out: Annotated[str, option("FILE", OUT_HELP, "stdout")] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first file that cannot be read.")] = False,
    batch_size: Annotated[int, option("N", "Images per batch.", min=1)] = 32,
    engine: Annotated[str, option("NAME", ENGINE_HELP, complete=complete_from(ENGINES_OR_AUTO))] = "auto",
    merge: Annotated[int, option("N", MERGE_HELP, min=0)] = 0,
    lenient: options.Lenient = False,
    max_pixels: options.MaxPixels = None,
    isolate: options.Isolate = False,
) -> None:
    """Classify images.

    Predictions go to stdout, messages to stderr. Unreadable files are reported and skipped; the exit code is then 3.
    """
    with pause_gc():
        from vitral.core.machine import keep_freed_memory
        from vitral.data.decoding.isolation import Isolation
        from vitral.inference.inputs import find_images, refuse_unlisted
        from vitral.inference.predictor import PredictionStream, Predictor, ReadingOptions
        from vitral.inference.writers import (
            WHOLE,
            open_feature_writer,
            open_output,
            open_prediction_writer,
            output_exists,
            parse_shard,
        )

    share = parse_shard(shard) if shard else WHOLE
    option, target = ("--features", features) if features else ("--out", out)  # stdout if the target is empty
    path = Path(target).expanduser()
    if features:
        _check_features(context, features)
    text_format = _format(format, out)
    if target and output_exists(path, option):
        log.info(f"{target} exists, so nothing was done; remove it to predict again")
        return
    found = find_images(image, sys.stdin.buffer if sys.stdin else None)  # a daemon has no stdin
    images = (each for each in (refuse_unlisted(found) if target else found) if share.contains(each.name))
    predicted = failed = 0
    with open_output(path, option) if target else nullcontext(sys.stdout.buffer) as file, ExitStack() as stack:
        keep_freed_memory()
        merging = None
        if merge:
            from vitral.inference.graph.token_merging import TokenMerging

            merging = TokenMerging(per_layer=merge)
        with pause_gc():  # while torch is imported
            reading: ReadingOptions = {"lenient": lenient, "max_pixels": max_pixels}
            reading["isolation"] = Isolation() if isolate else None
            predictor = Predictor(model, engine=engine, merging=merging, **reading)
        stack.callback(predictor.close)  # after an interrupt the process would wait for the threads that read
        stream = PredictionStream(predictor, images, batch_size)
        outputs = stream.outputs("features" if features else "logits")
        if features:
            output = open_feature_writer(file, path, predictor.width)
        else:
            bundle = predictor.bundle
            output = open_prediction_writer(file, text_format, bundle.classes, top, bundle.activation, stream.engine)
        with output as writer, _progress(strict) as report:
            for batch, numbers in outputs:
                report(batch)
                writer.write(batch, numbers)
                predicted, failed = predicted + len(batch.pixels), failed + len(batch.failed)
    if target:
        log.info(f"{predicted:,} images in {target}")
    if failed:
        message = f"{failed:,} of {predicted + failed:,} images could not be read"
        raise DataError(message, code="data.bad_files", hint="see above for each; repair, remove or rename them")


def _check_features(context: typer.Context, file: str) -> None:
    """Refuse options that do not apply to features, even with their default value, and a file that cannot hold them."""
    from vitral.inference.writers import check_features_path

    for name in ("top", "format", "out"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            message = f"--{name} applies to classes, but --features writes features"
            hint = "leave it out, or run the command once for classes and once for features"
            raise ConfigError(message, code="config.conflict", where=f"--{name}", hint=hint)
    check_features_path(Path(file))


def _format(format: str, out: str) -> "Format":
    """The format that was asked for, or that of the file's suffix, or a table."""
    from vitral.data.datasets.files import suffix
    from vitral.inference.writers import FORMAT_BY_SUFFIX, parse_format

    if format:
        return parse_format(format)
    if not out:
        return "table"
    if suffix(out) not in FORMAT_BY_SUFFIX:
        message = f"expected a FILE that ends in {format_choices(FORMAT_BY_SUFFIX)}, or --format, got {out!r}"
        raise ConfigError(message, code="config.unknown_format", where="--out", hint="add --format jsonl, for example")
    return FORMAT_BY_SUFFIX[suffix(out)]


@contextmanager
def _progress(strict: bool) -> "Iterator[Callable[[Batch], None]]":
    """Report unreadable files, or raise the first; show a counter on stderr if only messages go to the terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    from vitral.html.page import printable

    console = Console(stderr=True)
    hidden = not console.is_terminal or sys.stdout.isatty() or not log.isEnabledFor(logging.INFO)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} images"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=None)

        def report(batch: "Batch") -> None:
            for index, error in batch.failed.items():
                if strict:
                    raise error
                hint = f"; {error.hint}" if error.hint else ""
                line = f"{printable(batch.names[index])}: {printable(error.message)}{hint}"
                progress.console.print(Text(line), soft_wrap=True)
            progress.advance(task, len(batch.names))

        yield report
