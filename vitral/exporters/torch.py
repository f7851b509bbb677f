"""Export to `torch.export`: one `.pt2` file that torch runs without Vitral, with no pickle in it.

B images, H x W pixels, C channels, K outputs.
"""

import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import interpolate

from vitral.core.config import Config
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.exporters.plan import STORAGE, ExportPlan, InputSize
from vitral.inference.engines.engine import Engine, FloatArray, PixelBatch
from vitral.inference.exported import MODEL_FILES, Method

SAMPLE = 2  # images: torch.export specializes on a batch of one
MAX_SIDE = 65_535  # pixels
METADATA_FILE = "export.json"  # inside the .pt2 file


class ResizeModule(nn.Module):
    """Images uint8 (B, H, W, C) of any size to the model's pixels, by torch's own resizing."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing

    def forward(self, images: Tensor) -> Tensor:
        crop, image_size = self.preprocessing.crop, self.preprocessing.image_size
        sides: tuple[int, ...] = image_size
        if isinstance(crop, CenterCrop):
            rows, columns = (int(side / crop.fraction) for side in image_size)
            height, width = images.shape[1:3]
            sides = (torch.sym_max(rows, columns * height // width), torch.sym_max(columns, rows * width // height))
        resized = interpolate(images.permute(0, 3, 1, 2), size=sides, mode=crop.filter, antialias=True)
        for axis, (side, kept) in enumerate(zip(sides, image_size, strict=True), start=2):
            margin = side - kept
            start = (margin + (margin // 2) % 2) // 2  # half of it, rounded to even
            resized = resized.narrow(axis, start, kept)
        return resized.permute(0, 2, 3, 1)  # (B, image_size, C)


def export_program(plan: ExportPlan) -> ExportedProgram:
    """The planned graph as a program of torch.export."""
    module = nn.Sequential(ResizeModule(plan.preprocessing), plan.graph).eval() if plan.resizes else plan.graph
    dynamic = {0: Dim("batch")} if plan.batch_size == "dynamic" else {}
    height, width = plan.preprocessing.image_size if plan.input_size == "dynamic" else plan.input_size
    if plan.input_size == "dynamic":
        dynamic |= {1: Dim("height", min=1, max=MAX_SIDE), 2: Dim("width", min=1, max=MAX_SIDE)}
        height, width = 2 * height, 2 * width
    batch = SAMPLE if plan.batch_size == "dynamic" else plan.batch_size
    pixels = torch.zeros(batch, height, width, plan.graph.channels, dtype=torch.uint8)
    with torch.no_grad():
        program = torch.export.export(module, (pixels,), dynamic_shapes=(dynamic,) if dynamic else None)
    program.example_inputs = None  # the only part of a program that would be pickled
    return program


def serialize_program(program: ExportedProgram, metadata: str) -> bytes:
    """The bytes of a `.pt2` file with metadata inside."""
    file = BytesIO()
    torch.export.save(program, file, extra_files={METADATA_FILE: metadata})
    return file.getvalue()


@dataclass(frozen=True)
class ProgramEngine:
    """An engine that runs a program of torch.export."""

    module: torch.nn.Module

    @torch.no_grad()
    def run(self, pixels: PixelBatch) -> FloatArray:
        return self.module(torch.from_numpy(pixels)).numpy()  # (B, K)


class TorchTarget(Config):
    """One `.pt2` file."""

    kind: Literal["torch"] = "torch"
    file: ClassVar[str] = MODEL_FILES["torch"]
    package: ClassVar[str] = "torch"
    opset: ClassVar[int | None] = None
    quantization_methods: ClassVar[tuple[Method, ...]] = ()

    def check(self, input_size: InputSize) -> None:
        """Torch is always installed, and resizes images of any size."""

    def write(self, plan: ExportPlan, folder: Path) -> None:
        content = serialize_program(export_program(plan), json.dumps(dict(plan.metadata)))
        STORAGE.write_file(folder / self.file, [memoryview(content)])

    def open(self, folder: Path) -> Engine:
        return ProgramEngine(torch.export.load(folder / self.file).module())
