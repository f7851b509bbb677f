"""The widely copied `vit_model.py`, whose names are those of an older timm: it is read as timm's."""

from pathlib import Path

import pytest

from tests.weights.formats.files import layout, relative_errors, vit
from vitral.models import DistilledHead, TanhHead
from vitral.weights.load import open_model


@pytest.mark.parametrize(("name", "head"), [("vit_model", TanhHead), ("vit_model_distilled", DistilledHead)])
def test_it_answers_as_its_own_code(tmp_path: Path, name: str, head: type) -> None:
    folder, found = layout(name, tmp_path / "a")
    opened = open_model(folder, "mixer.heads=2")
    assert isinstance(vit(opened.loaded).head, head)
    assert any(line.startswith("assumed: ") for line in opened.messages)  # its pixels, of which a file says nothing
    assert max(relative_errors(opened.loaded.model, found.answers)) <= 1e-6
