"""Programs of torch.export: the pixels that the model sees, and nothing in the file that is run when it is read."""

import json
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from tests.inference.exports import loaded, plan
from vitral.core.config import Size, union_members
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import crop_and_resize
from vitral.exporters.targets import METADATA_FILE, ResizeModule, TorchTarget, export_program

VIEWS: list[EvalCropConfig] = [
    *(view() for view in union_members(EvalCropConfig)),
    CenterCrop(fraction=0.9),
    CenterCrop(rounding="down"),
    CenterCrop(aspect="squash"),
]


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_resizing_gives_the_very_pixels_that_the_model_sees(view: EvalCropConfig) -> None:
    needs = Preprocessing(image_size=Size(24, 32), crop=view)
    for size in ((24, 32), (100, 151), (17, 9), (8, 300), (131, 24), (103, 61)):
        pixels = np.random.default_rng(size).integers(0, 256, (2, *size, 3), dtype=np.uint8)
        wanted = [crop_and_resize(each, Size(*size), view.plan(Size(*size), needs.image_size)) for each in pixels]
        assert np.array_equal(ResizeModule(needs)(torch.from_numpy(pixels)).numpy(), np.stack(wanted)), size


def test_a_program_takes_any_batch_of_any_size_and_holds_no_pickle(tmp_path: Path) -> None:
    found = plan(loaded(view=CenterCrop()), input_size="dynamic", metadata={"task": "classify"})
    TorchTarget().write(found, tmp_path)
    content = (tmp_path / TorchTarget.file).read_bytes()
    with ZipFile(BytesIO(content)) as archive:
        files = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    pickled = [name for name, data in files.items() if data.startswith((b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"))]
    assert pickled == []
    assert b'"use_pickle": true' not in b"".join(data for name, data in files.items() if name.endswith(".json"))
    assert files["data/sample_inputs/model.pt"] == b""  # which torch would pickle
    notes = {METADATA_FILE: ""}
    module = torch.export.load(BytesIO(content), extra_files=notes).module()
    assert json.loads(notes[METADATA_FILE]) == {"task": "classify"}
    for shape in ((1, 40, 30, 3), (3, 24, 32, 3), (7, 9, 61, 3)):
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
        torch.testing.assert_close(module(pixels), found.graph(ResizeModule(found.preprocessing)(pixels)))


def test_a_program_may_be_of_one_batch_and_one_size() -> None:
    found = plan(loaded(), batch_size=2)
    program = export_program(found)
    pixels = torch.randint(0, 256, (2, 24, 32, 3), dtype=torch.uint8)
    torch.testing.assert_close(program.module()(pixels), found.graph(pixels))
    with pytest.raises(Exception, match="shape"):
        program.module()(pixels[:1])
