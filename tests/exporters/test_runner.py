"""The runner: it sees files as Vitral does, and needs neither Vitral nor torch."""

import runpy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.errors import raises
from tests.inference.exports import loaded, plan
from vitral.core.config import Size
from vitral.core.manifest import Manifest, describe_files, write_manifest
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, Resize
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import crop_and_resize
from vitral.exporters.runner import FILE, NO_VERIFY, run_script, runner_script
from vitral.exporters.targets import InputSize, OnnxTarget, TorchTarget

SIZES = {"wide": (90, 40), "tall": (37, 120), "small": (12, 9), "large": (400, 300)}  # width and height


def photo(size: tuple[int, int]) -> Image.Image:
    """A smooth picture in which no two parts are alike, with a little noise."""
    wide, high = size
    x, y = np.meshgrid(np.linspace(0, 1, wide), np.linspace(0, 1, high))
    planes = np.stack([255 * x, 255 * y, 120 + 100 * np.sin(7 * x * y)], axis=-1)
    noise = np.random.default_rng(size).normal(0, 6, planes.shape)
    return Image.fromarray(np.clip(planes + noise, 0, 255).astype(np.uint8))


def files(folder: Path) -> list[Path]:
    """Pictures as people have them: turned by EXIF, gray, with alpha, with a palette."""
    for name, size in SIZES.items():
        photo(size).save(folder / f"{name}.jpg", quality=90)
        photo(size).convert("L").save(folder / f"{name}-gray.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    photo((400, 220)).save(folder / "turned.jpg", exif=turned)
    clear = photo((60, 50))
    clear.putalpha(photo((60, 50)).convert("L"))
    clear.save(folder / "clear.png")
    photo((60, 50)).convert("P").save(folder / "palette.png")
    return sorted(folder.iterdir())


def functions(
    folder: Path, view: EvalCropConfig, input_size: InputSize | None = None, channels: int = 3
) -> dict[str, Any]:
    """What the runner of an export defines."""
    found = plan(loaded(channels, view), input_size=input_size)
    OnnxTarget().write(found, folder)
    (folder / "export.json").write_text('{"classes": []}', encoding="utf-8")
    (folder / FILE).write_text(runner_script(OnnxTarget(), found), encoding="utf-8")
    return runpy.run_path(str(folder / FILE), run_name="looked at")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.argv", ["run_script.py", "--no-verify"])
    for name in ("export", "photos"):
        (tmp_path / name).mkdir()
    return tmp_path


VIEWS = [Resize(), CenterCrop(), Resize(filter="bicubic"), CenterCrop(aspect="squash", rounding="down")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_it_sees_files_as_vitral_does_but_for_a_level_or_two(view: EvalCropConfig, channels: int, home: Path) -> None:
    needs: Preprocessing = loaded(channels, view).bundle.preprocessing
    pixels = functions(home / "export", view, channels=channels)["pixels"]
    for path in files(home / "photos"):
        found, own = pixels(path), needs.pixels(path.read_bytes(), path.name)
        assert found.shape == own.shape == (24, 32, channels), path.name
        off = np.abs(found.astype(int) - own)
        assert off.max() <= (6 if view.filter == "bicubic" else 2), path.name
        assert off.mean() < 0.4, path.name


def test_it_keeps_no_notes_for_the_makers_of_its_engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions(home / "export", Resize())
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    (home / "user").mkdir()
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home / "user"))
    run_script(home / "export", OnnxTarget(), (), (NO_VERIFY,))
    assert list((home / "user").iterdir()) == []


def test_it_reads_a_jpeg_at_the_scale_that_vitral_does(home: Path) -> None:
    found = plan(loaded())
    square = found._replace(
        preprocessing=found.preprocessing.model_copy(update={"image_size": Size(32, 32)}), input_size=Size(32, 32)
    )  # only what it sees matters here
    OnnxTarget().write(found, home / "export")
    (home / "export" / "export.json").write_text("{}", encoding="utf-8")
    (home / "export" / FILE).write_text(runner_script(OnnxTarget(), square), encoding="utf-8")
    pixels = runpy.run_path(str(home / "export" / FILE), run_name="looked at")["pixels"]
    noise = np.random.default_rng(0).integers(0, 256, (320, 320, 3), dtype=np.uint8)  # by which scales differ
    Image.fromarray(noise).save(home / "photos" / "noise.jpg")
    own = square.preprocessing.pixels((home / "photos" / "noise.jpg").read_bytes(), "noise.jpg")
    assert np.abs(pixels(home / "photos" / "noise.jpg").astype(int) - own).max() <= 1


def test_where_the_graph_resizes_it_hands_over_what_the_decoder_gives(home: Path) -> None:
    pixels = functions(home / "export", Resize(), "dynamic")["pixels"]
    photo((403, 301)).save(home / "photos" / "large.png")
    assert np.array_equal(pixels(home / "photos" / "large.png"), np.asarray(photo((403, 301))))


def test_pictures_of_another_fixed_size_are_made_of_that_size(home: Path) -> None:
    pixels = functions(home / "export", CenterCrop(), Size(40, 30))["pixels"]
    photo((90, 70)).save(home / "photos" / "one.png")
    assert pixels(home / "photos" / "one.png").shape == (40, 30, 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("input_size", [Size(96, 128), Size(128, 96), Size(70, 200)], ids=str)
@pytest.mark.parametrize(
    "view", [CenterCrop(), CenterCrop(fraction=1.0), Resize(), CenterCrop(aspect="squash")], ids=repr
)
def test_by_way_of_another_fixed_size_the_model_sees_what_vitral_shows(
    view: EvalCropConfig, input_size: Size, home: Path
) -> None:
    pixels, needs = functions(home / "export", view, input_size)["pixels"], loaded(view=view).bundle.preprocessing
    for path in files(home / "photos"):
        came, own = pixels(path).copy(), needs.pixels(path.read_bytes(), path.name)
        assert came.shape == (*input_size, 3)
        off = np.abs(crop_and_resize(came, input_size, view.plan(input_size, needs.image_size)).astype(int) - own)
        assert off.mean() < 7, path.name  # half a pixel of the 24x32; of a squashed picture it is up to 40
    photo((input_size.width, input_size.height)).save(home / "photos" / "own.png")
    assert np.array_equal(pixels(home / "photos" / "own.png"), np.asarray(photo((input_size.width, input_size.height))))


def test_it_answers_only_with_files_that_its_manifest_lists(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / "export"
    functions(folder, Resize())
    script = str(folder / FILE)

    def run(*arguments: str) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", [script, *arguments])
            return runpy.run_path(script, run_name="looked at")

    def refused(name: str) -> bool:
        """Whether it stops, names the file, and runs with --no-verify, which it says."""
        with pytest.raises(SystemExit, match=name.replace(".", r"\.")):
            run()
        capsys.readouterr()
        run("--no-verify")
        return "not verified" in capsys.readouterr().err

    assert refused("manifest.json")
    write_manifest(folder, Manifest(kind="export", files=describe_files(folder)))
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run()["verify"]
    metadata = whole["export.json"]
    for name, content in {
        "export.json": metadata.replace(b"classes", b"Classes"),
        "run.py": whole["run.py"] + b"\n",
        "manifest.json": whole["manifest.json"].replace(b"  ", b" ", 1),
    }.items():
        (folder / name).write_bytes(content)
        assert refused(name)
        (folder / name).write_bytes(whole[name])
    for kept in (("run.py", "model.onnx"), ("export.json", "run.py"), ("export.json", "model.onnx")):
        entries = tuple(entry for entry in describe_files(folder) if entry.name in kept)
        write_manifest(folder, Manifest(kind="export", files=entries))
        assert refused("manifest.json")
    run("--no-verify")


def test_it_stops_at_pixels_that_it_would_read_otherwise(home: Path) -> None:
    pixels = functions(home / "export", Resize())["pixels"]
    Image.fromarray(np.zeros((40, 40), dtype=np.uint16)).save(home / "photos" / "deep.png")
    with pytest.raises(SystemExit, match="I;16"):
        pixels(home / "photos" / "deep.png")


def test_it_is_short() -> None:
    views: tuple[EvalCropConfig, ...] = (Resize(), CenterCrop())
    for view, input_size in product(views, (None, Size(96, 128))):
        lines = runner_script(OnnxTarget(), plan(loaded(view=view), input_size=input_size)).splitlines()
        assert len([line for line in lines if line.strip()]) <= 66  # half of them verify its files
        assert max(map(len, lines)) <= 120


def test_in_its_process_there_is_no_vitral_and_no_torch(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(
        "import importlib, json, sys\n"
        "def missing(name):\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError:\n"
        "        return True\n"
        "    return False\n"
        "print(json.dumps({name: missing(name) for name in sys.argv[1:]}))\n",
        encoding="utf-8",
    )
    names = [Path(name) for name in ("torch", "torch.nn", "vitral", "vitral.core.config", "numpy")]
    assert list(run_script(tmp_path, OnnxTarget(), names)[0].values()) == [True, True, True, True, False]
    assert list(run_script(tmp_path, TorchTarget(), names[2:])[0].values()) == [True, True, False]


def test_its_process_has_the_packages_of_this_one_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("export", "modules", "here"):
        (tmp_path / folder).mkdir()
    (tmp_path / "modules" / "engine.py").write_text("name = 'of the cluster'", encoding="utf-8")
    (tmp_path / "here" / "engine.py").write_text("name = 'by chance'", encoding="utf-8")
    (tmp_path / "export" / FILE).write_text("import json, engine\nprint(json.dumps({'is': engine.name}))")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    assert run_script(tmp_path / "export", OnnxTarget(), []) == [{"is": "of the cluster"}]


def test_one_that_fails_tells_why(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("raise OSError('the disk is on fire')", encoding="utf-8")
    with raises("export.runner_failed", FILE, "OSError: the disk is on fire"):
        run_script(tmp_path, OnnxTarget(), [])
