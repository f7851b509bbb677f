"""Graphs as programs of torch.export: one .pt2 file that torch runs without Vitral, and no pickle in it.

B pictures, H x W pixels, C channels, K numbers.
"""

from io import BytesIO
from typing import Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import interpolate

from vitral.config import Size
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.view import CentreCrop
from vitral.deploy.graph import Graph

SAMPLE = 2  # images: torch takes one for a constant
LONGEST = 65_535  # pixels of a side that may come in
NOTES = "export.json"  # inside the file


class Resizing(nn.Module):
    """Pictures uint8 (B, H, W, C) of any size to what the model sees of them, by torch's own resizing."""

    def __init__(self, needs: Preprocessing) -> None:
        super().__init__()
        self.needs = needs

    def forward(self, pictures: Tensor) -> Tensor:
        view, image = self.needs.view, self.needs.image
        lengths: tuple[int, ...] = image
        if isinstance(view, CentreCrop):
            rows, columns = (int(side / view.fraction) for side in image)
            high, wide = pictures.shape[1:3]
            lengths = (torch.sym_max(rows, columns * high // wide), torch.sym_max(columns, rows * wide // high))
        levels = interpolate(pictures.permute(0, 3, 1, 2), size=lengths, mode=view.filter, antialias=True)
        for axis, (length, kept) in enumerate(zip(lengths, image, strict=True), start=2):
            spare = length - kept
            start = (spare + (spare // 2) % 2) // 2  # the half of it, and of an odd one the even neighbour
            levels = levels.narrow(axis, start, kept)
        return levels.permute(0, 2, 3, 1)  # (B, image, C)


def program_of(
    graph: Graph, needs: Preprocessing, batch: int | Literal["dynamic"], incoming: Size | Literal["dynamic"]
) -> ExportedProgram:
    """The graph as a program; `incoming` is the size of the pictures that it takes."""
    whole = graph if incoming == needs.image else nn.Sequential(Resizing(needs), graph).eval()
    high, wide = (side * 2 for side in needs.image) if incoming == "dynamic" else incoming
    count = SAMPLE if batch == "dynamic" else batch
    pixels = torch.zeros(count, high, wide, graph.channels, dtype=torch.uint8)
    sides = {0: Dim("batch")} if batch == "dynamic" else {}
    if incoming == "dynamic":
        sides |= {1: Dim("height", min=1, max=LONGEST), 2: Dim("width", min=1, max=LONGEST)}
    with torch.no_grad():
        program = torch.export.export(whole, (pixels,), dynamic_shapes=(sides,) if sides else None)
    program.example_inputs = None  # the one thing of a program that would be pickled
    return program


def packed(program: ExportedProgram, notes: str) -> bytes:
    """The program as the content of a .pt2 file, with notes inside."""
    file = BytesIO()
    torch.export.save(program, file, extra_files={NOTES: notes})
    return file.getvalue()
