"""`vitral export`."""

import logging
from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import verb
from vitral.cli.terminal.completion import EXPORT_FORMATS, complete_from
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import format_choices

log = logging.getLogger("vitral")

TO_HELP = f"The format: {format_choices(EXPORT_FORMATS)}."
INT8_HELP = "Quantize to int8, except sensitive layers. Not for torch."
SIZE_HELP = (
    "Put resizing into the exported model: the size of the images that it takes, such as 480x640 (height x width), or "
    "dynamic."
)
VERIFY_HELP = f"Images to verify the export with. {options.DATA_HELP}"
VERIFY_DEFAULT = "the validation images of the run, else sample"


@verb("vitral export runs/photos", "vitral export runs/photos --to openvino --int8")
def export(  # noqa: PLR0913, PLR0917, one parameter per option
    model: options.Model,
    to: Annotated[str, option("FORMAT", TO_HELP, complete=complete_from(EXPORT_FORMATS))] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help=INT8_HELP)] = False,
    batch_size: Annotated[str, option("N", "Batch size of the exported model, such as 1, or dynamic.")] = "dynamic",
    image_size: Annotated[str, option("SIZE", SIZE_HELP, "it takes preprocessed pixels")] = "",
    data: Annotated[str, option("DATA", VERIFY_HELP, VERIFY_DEFAULT, options.complete_data)] = "",
    root: options.Root = "",
    images: Annotated[int, option("N", "Number of images to verify with.", min=1)] = 500,
    out: Annotated[str, option("FOLDER", "New folder.", "exports/NAME-FORMAT[-int8]")] = "",
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
    for line in result.lines():
        log.info(line)
    echo(result.folder)
