"""`vitral explain` as its users meet it: real files and real processes."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.errors import raises
from tests.models.variants import VARIANTS, small
from tests.processes import run_forked
from tests.weights.bundles import loaded
from vitral import cli, open_data
from vitral.explanation.explanation import Summary
from vitral.models import NoHead, Resnet, Vit
from vitral.weights.bundle import write_bundle


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a model and pictures, one of them damaged."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, small(), "run")
    for name in ("cat.png", "dog.jpg", "pets/a.png", "pets/deep/b.PNG", "pets/.hidden.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)).save(path)
    (tmp_path / "pets" / "notes.txt").write_text("no picture")
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    return tmp_path


def written(home: Path, config: Vit | Resnet, name: str) -> None:
    model = loaded(config)
    write_bundle(home / name, model.bundle, model.model.state_dict(), "a card")


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked("explain", *arguments, cwd=home)


def test_a_page_is_written_and_its_path_printed_and_figures_beside_it(home: Path) -> None:
    done = run(home, "run", "cat.png", "--png", "figures", "--layers", "2", "--class", "dog")
    assert (done.returncode, done.stdout, done.stderr) == (0, "cat.explain.html\n", "")
    page = (home / "cat.explain.html").read_text(encoding="utf-8")
    assert "cat.png" in page
    assert "dog" in page
    names = {path.name for path in (home / "figures").iterdir()}
    assert {"cat-rollout.png", "cat-occlusion.png", "cat-faithfulness.png", "model-filters.png"} <= names


def test_a_bad_file_is_named_and_the_rest_goes_on(home: Path) -> None:
    done = run(home, "run", "cat.png", "bad.jpg", "dog.jpg", "--json", "--quick")
    assert done.returncode == 3
    assert "bad.jpg" in done.stderr
    assert "Traceback" not in done.stderr
    found = Summary.from_json(done.stdout)
    assert [each.image for each in found.images] == ["cat.png", "dog.jpg"]
    assert len(found.errors) == 1
    assert "bad.jpg" in found.errors[0]
    assert Path(found.page).name == "run.explain.html"
    assert (home / found.page).is_file()
    assert len(done.stdout) < 10_000


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a line that is run here."""
    with pytest.raises(SystemExit) as left:
        cli.main(["explain", *arguments])
    out, err = capsys.readouterr()
    code = left.value.code
    return (code if isinstance(code, int) else 0), out, err


def test_json_has_the_answer_and_the_areas(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "run", "cat.png", "--json")
    found = json.loads(out)
    assert code == 0
    image = found["images"][0]
    assert len(image["predictions"]) == 4
    assert image["target"] == image["predictions"][0]["name"]
    assert [each["map"] for each in image["faithfulness"]] == ["rollout", "relevance", "attention", "occlusion"]
    assert sum(answer["probability"] for answer in image["predictions"]) == pytest.approx(1, abs=1e-4)


def test_a_folder_is_all_of_its_images_and_names_the_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "run", "pets", "--quick", "--json")
    assert code == 0
    assert [each["image"] for each in json.loads(out)["images"]] == ["a.png", "b.PNG"]
    assert (home / "pets.explain.html").is_file()


def test_of_a_large_folder_the_first_images_are_shown(
    home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.explain, "MOST", 1)
    with caplog.at_level("INFO", logger="vitral"):
        found = list(cli.explain.find_images(["pets", "cat.png"]))
    assert found == [Path("pets/a.png"), Path("cat.png")]
    assert "first 1 " in caplog.text
    (home / "empty/__MACOSX").mkdir(parents=True)
    (home / "empty/__MACOSX/a.png").touch()
    with raises("data.empty", "empty"):
        list(cli.explain.find_images(["empty"]))


def test_a_dataset_is_one_test_image_of_each_class(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = open_data("sample")
    found = [image.name for image in cli.explain.find_images(["sample"]) if not isinstance(image, Path)]
    labels = {f"sample/{item.name}": item.label for item in samples.of("test")}
    assert [labels[name] for name in found] == list(range(10))

    code, out, _ = told(capsys, "run", "sample", "--quick", "--json")
    assert code == 0
    assert [f"sample/test/{each['image']}" for each in json.loads(out)["images"]] == found
    assert (home / "sample.explain.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code", "value"),
    [
        (["run", "no.png"], 3, "data.not_found", "no.png"),
        (["run", "bad.jpg"], 3, "data.unknown_format", "bad.jpg"),
        (["run", "bad.jpg", "bad.jpg"], 3, "data.bad_files", "2"),
        (["run", "cat.png", "--class", "dgo"], 2, "config.unknown_name", "'dog'"),
        (["run", "cat.png", "--layers", "3"], 2, "config.out_of_range", "1 to 2"),
        (["nowhere", "cat.png"], 3, "weights.not_found", "nowhere"),
        (["run", "cat.png", "--out", "no/where.html"], 3, "config.not_found", "where: no"),
        (["run", "cat.png", "--out", "dog.jpg"], 2, "config.path_exists", "where: dog.jpg"),
        (["run", "cat.png", "--out", "pages"], 2, "config.unknown_format", "where: --out"),
    ],
)
def test_mistakes_are_answered_in_a_few_lines_and_nothing_is_written(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], exit_code: int, code: str, value: str
) -> None:
    before = sorted(home.rglob("*"))
    found, out, err = told(capsys, *arguments)
    assert (found, out) == (exit_code, "")
    assert f"error[{code}]: " in err
    assert value in err
    assert sorted(home.rglob("*")) == before


def test_an_earlier_page_gives_way_to_a_new_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("cat.png", "dog.jpg"):
        assert told(capsys, "run", name, "--quick", "--out", "page.html")[0] == 0
    assert "dog.jpg" in (home / "page.html").read_text(encoding="utf-8")
    (home / "cat.explain.html").write_text("<html><title>my own</title></html>")
    code, _, err = told(capsys, "run", "cat.png", "--quick")
    assert code == 2
    assert err.startswith("error[config.path_exists]: ")
    assert "--out" in err
    assert (home / "cat.explain.html").read_text() == "<html><title>my own</title></html>"


def test_a_folder_for_the_page_gets_it_by_its_usual_name(home: Path) -> None:
    assert cli.explain.page_path("pets", ["cat.png"], "run") == Path("pets/cat.explain.html")
    assert cli.explain.page_path("", ["cat.png", "dog.jpg"], "runs/garden") == Path("garden.explain.html")
    assert cli.explain.page_path("", ["."], "run").name == f"{home.name}.explain.html"
    with raises("config.not_found", "nowhere"):
        cli.explain.page_path("nowhere/page.html", ["cat.png"], "run")


@pytest.mark.parametrize("name", ["resnet", "mixer-pooling", "head-none"])
def test_a_model_that_lacks_something_has_a_page_all_the_same(
    home: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    written(home, VARIANTS[name], "other")
    code, out, _ = told(capsys, "other", "cat.png", "--json")
    assert code == 0
    lacks = json.loads(out)["images"][0]["unavailable"]
    assert lacks
    assert isinstance(VARIANTS[name].head, NoHead) == any("no classes" in lack for lack in lacks)
