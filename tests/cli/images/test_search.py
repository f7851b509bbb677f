"""`vitral search`, `cluster` and `curate` as their users meet them."""

import json
from pathlib import Path

import pytest

from tests.evaluation.subjects import striped_model
from tests.inference.album import photos, spoilt
from vitral import cli
from vitral.cli.terminal.completion import TABLE_FORMATS
from vitral.weights.bundle import write_bundle


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and a pile of images, which is the working directory."""
    loaded = striped_model()
    write_bundle(tmp_path / "model", loaded.bundle, loaded.model.state_dict(), "a card")
    photos(tmp_path / "pile", 8)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return int(caught.value.code or 0)


def test_the_last_argument_is_where_to_search(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for format in TABLE_FORMATS:
        words = ("search", "model", "pile/0.jpg", "pile/1.jpg", "pile", "--top", "2", "--format", format)
        assert run(*words, "--html", "page.html") == 0
        found[format] = capsys.readouterr().out
    queries = json.loads(found["json"])["queries"]
    assert [query["path"] for query in queries] == ["pile/0.jpg", "pile/1.jpg"]
    best = queries[1]["neighbors"][1]["path"]
    assert best in found["table"]
    assert found["csv"].splitlines()[4].endswith(best)
    assert (home / "page.html").is_file()


def test_bad_images_exit_3_and_are_skipped_if_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoilt(home / "pile")
    assert run("search", "model", "pile/0.jpg", "pile") == 3
    assert "error[data.bad_files]" in capsys.readouterr().err
    assert run("search", "model", "pile/0.jpg", "pile", "--skip-bad") == 0
    assert run("search", "model", "pile/0.jpg", "pile", "--format", "xml") == 2
    assert "error[config.unknown_name]" in capsys.readouterr().err


def test_clusters_and_curated_sets_are_written_and_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cluster", "model", "pile", "--clusters", "2", "--json", "--html", "clusters.html") == 0
    clusters = json.loads(capsys.readouterr().out)
    assert sum(each["images"] for each in clusters["clusters"]) == 8
    assert Path(clusters["manifest"]).read_text().count("\n") == 9
    assert run("cluster", "model", "pile", "--clusters", "2") == 2
    assert "error[config.path_exists]" in capsys.readouterr().err
    assert run("curate", "model", "pile", "--keep", "3") == 0
    assert "pile.curated.csv" in capsys.readouterr().out
    assert Path("pile.curated.csv").read_text().count("\n") == 4
    assert run("curate", "model", "pile") == 2
    assert "error[config.missing_value]" in capsys.readouterr().err
