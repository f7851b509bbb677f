"""Packages of engines: told how to get them where they are missing, and silent where they are there."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.errors import raises
from vitral.core.imports import OPENVINO_TELEMETRY, load_onnx, load_onnxruntime, load_openvino

LOADERS = {"onnx": load_onnx, "onnxruntime": load_onnxruntime, "openvino": load_openvino}


@pytest.mark.parametrize("name", LOADERS)
def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with raises("config.missing_package", name, "pip install 'vitral[deploy]'") as caught:
        LOADERS[name]()
    assert caught.value.exit_code == 2


BROKEN = """
import sys
from vitral.core.errors import ConfigError
from vitral.core.imports import load_onnxruntime
sys.modules["numpy"] = None
try:
    load_onnxruntime()
except ConfigError as error:
    print(error.code, error)
"""


def test_a_package_that_lacks_something_says_what() -> None:
    """In a process of its own: a compiled module that failed to import stays broken."""
    home = {"PYTHONPATH": str(Path(__file__).parents[2])}
    said = subprocess.run(
        [sys.executable, "-c", BROKEN], env=home, check=True, timeout=120, capture_output=True, text=True
    ).stdout
    assert said.startswith("config.broken_package ")
    assert "onnxruntime" in said
    assert "numpy" in said


QUIET = """
import sys, threading
from vitral.core.imports import load_openvino
before = threading.active_count()
package = load_openvino()
package.Core()
assert not any("openvino_telemetry" in name for name in sys.modules), "telemetry was imported"
assert threading.active_count() == before, "something runs in the background"
"""


def test_telemetry_that_somebody_else_forbade_stays_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, OPENVINO_TELEMETRY, None)
    load_openvino()
    assert sys.modules[OPENVINO_TELEMETRY] is None


def test_openvino_is_used_without_its_telemetry(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", QUIET], env=home, check=True, timeout=120)
    assert list(tmp_path.iterdir()) == []  # telemetry keeps a number for each user


TOLD = """
from vitral.inference.engines.onnxruntime import make_session
from vitral.core.imports import load_onnx
onnx = load_onnx()
x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "one", [x], [y])
opset = onnx.helper.make_opsetid("", 20)
make_session(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString(), 1)
"""


def test_onnxruntime_keeps_no_notes_for_its_makers(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", TOLD], env=home, check=True, timeout=120)
    assert list(tmp_path.iterdir()) == []


def test_whoever_wants_the_telemetry_still_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = object()
    monkeypatch.setitem(sys.modules, "openvino_telemetry", theirs)
    load_openvino()
    assert sys.modules["openvino_telemetry"] is theirs
