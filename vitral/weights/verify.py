"""Compare our outputs with those of the library that a checkpoint comes from, run on the same file.

The library runs in a separate process (`oracles/`). What it needs is laid out in a temporary folder: links to the
files themselves, or the tensors as safetensors where they come from a pickle or had a prefix.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import WeightsError
from vitral.models.base import Model
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.certificate import NOT_RUN, TOLERANCE, Difference, describe_library, output_difference
from vitral.weights.formats.format import CONFIG, NPZ, PROCESSOR, OracleFiles
from vitral.weights.load import LoadedModel, OpenedModel, SourceCheckpoint
from vitral.weights.oracles.oracle import ModelOutputs, NoOracleError, OracleAnswer, run_oracle
from vitral.weights.reader import DEFAULT_FILE, INDEX, shard_files

NUM_IMAGES, SEED = 2, 0
OWN = "it is a bundle of Vitral; if it was converted, verify the original checkpoint"


class LibraryCheck(NamedTuple):
    """The library that was run and how far our outputs are from its own, or why it was not run."""

    library: str  # `timm 1.0.30`, or `none: REASON`
    difference: Difference | None

    def describe(self) -> str:
        """The check in a line."""
        return describe_library("the source library", *self)


def verify_source(opened: OpenedModel, required: bool) -> LibraryCheck:
    """Compare a model with the library of the file that it was read from.

    WeightsError if the outputs differ, and, where the check is required, if it cannot be made.
    """
    if opened.source is None:
        found = LibraryCheck(f"{NOT_RUN}{OWN}", None)
    else:
        batches = [probe_images(opened.loaded.bundle, size) for size in probe_sizes(opened.loaded.bundle)]
        found = check_library(opened.loaded, run_library(opened.source, opened.loaded.bundle, batches), batches)
    if found.difference is not None and found.difference.largest > TOLERANCE:
        message = f"{found.library} gives other outputs for this file: {found.difference.describe()}"
        hint = "report this as a bug, with the name of the model; nothing was written"
        raise WeightsError(message, code="weights.verification_failed", where=opened.file, hint=hint)
    if required and found.difference is None:
        message = f"cannot be verified: {found.library.removeprefix(NOT_RUN)}"
        hint = "install the library that wrote it beside vitral, or leave the verification out"
        raise WeightsError(message, code="weights.verification_unavailable", where=opened.file, hint=hint)
    return found


def check_library(loaded: LoadedModel, answer: OracleAnswer, batches: Sequence[Tensor]) -> LibraryCheck:
    """The largest difference over the batches that the library ran."""
    if not answer.outputs:
        return LibraryCheck(f"{NOT_RUN}{answer.reason}", None)
    try:
        found = [
            output_difference(model_outputs(loaded.model, batches[index]), theirs)
            for index, theirs in answer.outputs.items()
        ]
    except WeightsError as error:
        message = f"{answer.library}: {error.message}"
        raise WeightsError(message, code="weights.verification_failed", hint="report this as a bug") from None
    return LibraryCheck(answer.library, max(found, key=lambda each: each.largest))


def run_library(source: SourceCheckpoint, bundle: Bundle, batches: Sequence[Tensor]) -> OracleAnswer:
    """The outputs of the library that a checkpoint is of, or why there are none."""
    with TemporaryDirectory(prefix="vitral-verify-") as home:
        folder = Path(home)
        try:
            assert isinstance(bundle.model, Vit)
            arch = source.ckpt.arch or source.found.arch
            files = OracleFiles(folder, folder / DEFAULT_FILE, source.ckpt.path, source.ckpt.config, arch)
            request = source.format.oracle_request(files, bundle.model)
        except NoOracleError as error:
            return OracleAnswer("", {}, str(error), opened=False)
        _lay_out(source, folder)
        answer = run_oracle(request, batches)
    if answer.library and not answer.opened:
        return answer._replace(reason=f"{answer.library} does not open it: {answer.reason}")
    return answer


def _lay_out(source: SourceCheckpoint, folder: Path) -> None:
    """The files of a checkpoint as its library expects them; a file of numpy is read where it is."""
    file = source.ckpt.path
    if file.suffix == NPZ:
        return
    tensors = source.format.oracle_tensors(source.ckpt.tensors)
    for name in (CONFIG, PROCESSOR):
        if (file.parent / name).is_file():
            (folder / name).symlink_to((file.parent / name).resolve())
    handed_over = tensors is source.ckpt.tensors and source.plain
    if not handed_over or (file.name == INDEX and not source.ckpt.config):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / DEFAULT_FILE)
    elif file.name == INDEX:
        for part in (file, *shard_files(file)):
            (folder / part.name).symlink_to(part.resolve())
    else:
        (folder / DEFAULT_FILE).symlink_to(file.resolve())


def probe_sizes(bundle: Bundle) -> list[Size]:
    """The sizes that outputs are compared at: that of the position table and that of the preprocessing."""
    return list(dict.fromkeys((bundle.model.image_size, bundle.preprocessing.image_size)))


def probe_images(bundle: Bundle, size: Size) -> Tensor:
    """The images that all outputs are compared on, always the same, (B, C, H, W)."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.rand(NUM_IMAGES, bundle.model.channels, *size, generator=generator) * 2 - 1


@torch.no_grad()
def model_outputs(model: Model, images: Tensor) -> ModelOutputs:
    """Our outputs."""
    tokens = torch.cat(model.forward_features(images)[:3], dim=1)
    return ModelOutputs(tokens, model(images))
