"""`vitral export`."""

import logging
from typing import Annotated

import typer

from vitral.cli.app import DATA_HELP, Model, Root, complete_data, verb
from vitral.cli.terminal.completion import EXPORT_FORMATS, complete_from
from vitral.core.errors import format_choices

log = logging.getLogger("vitral")

SIZE_HELP = (
    "Put resizing into the exported model: the size of the images that it takes, such as 480x640 (height x width), or "
    "dynamic."
)
VERIFY_HELP = f"Images to verify the export with. {DATA_HELP}"
VERIFY_DEFAULT = "the validation images of the run, else sample"


@verb("vitral export runs/photos", "vitral export runs/photos --to openvino --int8")
def export(  # noqa: PLR0913, PLR0917, one parameter per option
    model: Model,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help=f"The format: {format_choices(EXPORT_FORMATS)}.",
            autocompletion=complete_from(EXPORT_FORMATS),
        ),
    ] = "onnx",
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantize to int8, except sensitive layers. Not for torch.")
    ] = False,
    batch_size: Annotated[
        str, typer.Option(metavar="N", help="Batch size of the exported model, such as 1, or dynamic.")
    ] = "dynamic",
    image_size: Annotated[
        str, typer.Option(metavar="SIZE", help=SIZE_HELP, show_default="it takes preprocessed pixels")
    ] = "",
    data: Annotated[
        str,
        typer.Option(metavar="DATA", help=VERIFY_HELP, show_default=VERIFY_DEFAULT, autocompletion=complete_data),
    ] = "",
    root: Root = "",
    images: Annotated[int, typer.Option(metavar="N", min=1, help="How many images to verify with.")] = 500,
    out: Annotated[
        str, typer.Option(metavar="FOLDER", help="New folder.", show_default="exports/NAME-FORMAT[-int8]")
    ] = "",
) -> None:
    """Export a model to ONNX, OpenVINO or torch files, and verify them.

    The files run without Vitral. The export is compared with the model on real images, and is refused unless the
    outputs agree. The result is printed and written to export.json.
    """
    from vitral.runs.export import export as run_export

    result = run_export(
        model,
        to,
        int8=int8,
        batch_size=batch_size,
        image_size=image_size,
        data=data,
        root=root,
        out=out,
        images=images,
    )
    metadata = result.metadata
    runner = metadata.runner.line() if metadata.runner else ""
    quantization = metadata.quantization.lines() if metadata.quantization else ()
    for line in (*result.messages, *quantization, *metadata.certificate.lines(), runner):
        log.info(line)
    typer.echo(result.folder)
