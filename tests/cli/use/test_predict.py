"""`vitral predict` as its users meet it: the program in this process, and real processes where signals matter."""

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.cli.analysis.test_evaluate import tiny
from tests.cli.forking import forked
from tests.data.decoding.hostile import breakable, breaking
from tests.data.pictures import cut, encoded, noise
from tests.evaluation.subjects import files_in, striped_model
from tests.inference import truth
from tests.inference.album import BAD, photos, spoilt
from tests.models.variants import small
from vitral import cli
from vitral.data.datasets.named import CLASSES
from vitral.inference.graph.token_merging import TokenMerging
from vitral.inference.predictor import Predictor
from vitral.weights.bundle import write_bundle
from vitral.weights.load import load

ENGINE = ("--engine", "eager")  # what takes no time to choose and to build


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bundle of a small model whose answers differ, as those of an untrained head do not."""
    folder = tmp_path_factory.mktemp("model")
    loaded = load(tiny(folder))
    torch.manual_seed(0)
    torch.nn.init.normal_(loaded.model.get_parameter("head.linear.weight"))
    write_bundle(folder / "random", loaded.bundle, loaded.model.state_dict(), "a card")
    return str(folder / "random")


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve photos in two folders."""
    folder = tmp_path_factory.mktemp("album")
    photos(folder / "a", 5)
    photos(folder / "b", 7)
    return folder


class Runner:
    """Runs the verb in this process."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self.capture = capture

    def __call__(self, *arguments: str | Path) -> Done:
        self.capture.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main(["predict", *ENGINE, *map(str, arguments)])
        out, talk = self.capture.readouterr()
        return Done(int(caught.value.code or 0), out.decode(), talk.decode())


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Runner:
    return Runner(capfdbinary)


def told(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def names(folder: Path) -> list[str]:
    return [f"{folder}/{part}/{number}.jpg" for part, count in (("a", 5), ("b", 7)) for number in range(count)]


def test_every_format_says_the_same(run: Runner, model: str, album: Path) -> None:
    found = [run(model, album, "--top", "3", "--format", format) for format in ("jsonl", "json", "csv", "table")]
    assert [done.code for done in found] == [0, 0, 0, 0]
    lines, whole, table, text = (done.stdout for done in found)
    rows = told(lines)
    assert [row["path"] for row in rows] == names(album)
    assert json.loads(whole) == rows
    cells = csv.DictReader(StringIO(table, newline=""))
    for row, fields, line in zip(rows, cells, text.splitlines(), strict=True):
        first, second, third = row["answers"]
        assert (first["class"], str(first["probability"])) == (fields["class"], fields["probability"])
        assert (third["class"], str(third["probability"])) == (fields["class_3"], fields["probability_3"])
        assert {first["class"], second["class"], third["class"]} < set(CLASSES)
        assert line.startswith(fields["path"])
        assert f"{second['class']} {second['probability']:.1%}" in " ".join(line.split())


def test_answers_are_the_softmax_of_the_model_on_what_evaluation_sees(run: Runner, model: str, album: Path) -> None:
    loaded = load(model)
    for row in told(run(model, album, "--top", "10", "--format", "jsonl").stdout):
        images = loaded.bundle.preprocessing.tensor(Path(row["path"]).read_bytes(), "")
        chances = loaded.model(images)[0].double().softmax(dim=0).tolist()
        found = {answer["class"]: answer["probability"] for answer in row["answers"]}
        assert found == pytest.approx(dict(zip(CLASSES, chances, strict=True)), rel=1e-4)


def test_merge_asks_a_predictor_that_merges(run: Runner, album: Path, tmp_path: Path) -> None:
    source = truth.loaded(small())
    write_bundle(tmp_path / "deep", source.bundle, source.model.state_dict(), "a card")
    predictor = Predictor(source, engine="eager", merging=TokenMerging(per_layer=4))
    plain, merged = (
        [row["answers"] for row in told(run(tmp_path / "deep", album, "--format", "jsonl", *words).stdout)]
        for words in ((), ("--merge", "4"))
    )
    assert plain != merged
    for answers, found in zip(merged, predictor.predict(names(album)), strict=True):
        assert [answer["class"] for answer in answers] == list(found.labels)
        assert [answer["probability"] for answer in answers] == pytest.approx(found.scores, rel=1e-4)


def test_the_bundled_images_are_a_name(run: Runner, model: str) -> None:
    done = run(model, "sample", "--top", "1", "--format", "csv", "--batch-size", "500")
    assert (done.code, done.stdout.count("\n")) == (0, 6001), done.stderr
    assert "\nsample/test/0999.npy," in done.stdout


def test_bad_files_are_rows_and_named_on_stderr_and_the_end_is_3(run: Runner, model: str, tmp_path: Path) -> None:
    photos(tmp_path, 6)
    spoilt(tmp_path)
    done = run(model, tmp_path, "--format", "jsonl", "--batch-size", "2")
    assert done.code == 3
    rows = {Path(row["path"]).name: row for row in told(done.stdout)}
    assert [name for name, row in rows.items() if "error" in row] == list(BAD)
    assert len(rows) == 10
    assert all(("error" in row) != ("answers" in row) for row in rows.values())
    talk = done.stderr.splitlines()
    assert [line.partition(": ")[0] for line in talk[:4]] == [str(tmp_path / name) for name in BAD]
    assert "900 bytes" in talk[0]
    assert talk[4].startswith("error[data.bad_files]: 4 of 10 ")
    table = run(model, tmp_path, "--format", "csv").stdout
    assert sum(bool(row["error"]) for row in csv.DictReader(StringIO(table, newline=""))) == 4


def test_strict_stops_at_the_first_and_leaves_no_file(run: Runner, model: str, tmp_path: Path) -> None:
    photos(tmp_path / "in", 2)
    spoilt(tmp_path / "in")
    done = run(model, tmp_path / "in", "--strict", "--out", tmp_path / "out" / "a.jsonl")
    assert done.code == 3
    assert re.match(r"error\[data\.truncated_image\]: .*900 bytes\nwhere: ", done.stderr)
    assert files_in(tmp_path / "out") == []
    done = run(model, tmp_path / "in", "--strict", "--format", "json")
    assert (done.code, type(json.loads(done.stdout))) == (3, list)


def test_what_cannot_be_listed_is_an_error_in_every_share_and_no_part(run: Runner, model: str, tmp_path: Path) -> None:
    out, missing = tmp_path / "a.npz", tmp_path / "not-mounted"
    for number in (1, 2, 3):
        done = run(model, missing, "--shard", f"{number}/3", "--features", out)
        assert (done.code, all(word in done.stderr for word in ("[data.not_found]", f"where: {missing}"))) == (3, True)
        assert files_in(tmp_path) == []
    done = run(model, missing, f"{missing}.jpg", "--format", "jsonl")
    assert (done.code, [row["path"] for row in told(done.stdout)]) == (3, [str(missing), f"{missing}.jpg"])


@pytest.mark.parametrize("count", [1, 3])
def test_the_parts_of_all_shares_are_the_whole(
    run: Runner, model: str, album: Path, tmp_path: Path, count: int
) -> None:
    for number in range(1, count + 1):
        done = run(model, album, "--shard", f"{number}/{count}", "--out", tmp_path / f"{number}.jsonl")
        assert (done.code, done.stdout) == (0, "")
    rows = [row for path in tmp_path.iterdir() for row in told(path.read_text())]
    whole = told(run(model, album, "--format", "jsonl").stdout)
    assert Counter(map(str, rows)) == Counter(map(str, whole))


def test_a_part_that_is_there_is_left_alone(
    run: Runner, model: str, album: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part = tmp_path / "1.jsonl"
    part.write_text("made before\n")
    caplog.set_level("INFO", "vitral")
    assert run(model, album, "--shard", "1/2", "--out", part) == (0, "", "")
    assert part.read_text() == "made before\n"
    assert "1.jsonl exists" in caplog.text
    assert run("no/such/model", album, "--out", part).code == 0
    script = "import sys; from vitral import cli\ntry: cli.main()\nfinally: assert 'torch' not in sys.modules"
    words = [sys.executable, "-c", script, "predict", model, str(album), "--shard", "1/2", "--out", str(part)]
    subprocess.run(words, capture_output=True, timeout=60, check=True)  # it takes but a moment


@pytest.mark.parametrize(("ending", "start"), [(".json", "[\n{"), (".csv", "path,class"), (".ndjson", '{"path"')])
def test_the_ending_of_the_file_tells_the_format(
    run: Runner, model: str, album: Path, tmp_path: Path, ending: str, start: str
) -> None:
    assert run(model, album, "--out", tmp_path / f"a{ending}").code == 0
    assert (tmp_path / f"a{ending}").read_text().startswith(start)


def test_features_go_to_a_file(run: Runner, model: str, album: Path, tmp_path: Path) -> None:
    loaded = load(model)
    assert run(model, album, "--features", tmp_path / "a.npz", "--batch-size", "5") == (0, "", "")
    with np.load(tmp_path / "a.npz") as found:
        assert found["names"].tolist() == names(album)
        for name, row in zip(found["names"], found["features"], strict=True):
            images = loaded.bundle.preprocessing.tensor(Path(name).read_bytes(), name)
            assert row == pytest.approx(loaded.model.forward_pooled(images)[0].detach().numpy(), abs=1e-5)


def test_a_model_without_classes_gives_features_alone(run: Runner, album: Path, tmp_path: Path) -> None:
    loaded = striped_model(classes=())
    write_bundle(tmp_path / "headless", loaded.bundle, loaded.model.state_dict(), "a card")
    done = run(tmp_path / "headless", album)
    assert (done.code, done.stdout) == (2, "")
    assert all(word in done.stderr for word in ("error[config.unsupported]: ", "--features"))
    assert run(tmp_path / "headless", album, "--features", tmp_path / "a.parquet").code == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("--shard", "0/4"), ("[config.bad_shard]", "--shard", "I/N", "'0/4'")),
        (("--shard", "5/4"), ("[config.bad_shard]", "--shard", "'5/4'")),
        (("--format", "xml"), ("[config.unknown_name]", "--format", "table, json, jsonl or csv", "'xml'")),
        (("--out", "/dev/null/a.jsonl"), ("[config.not_writable]", "--out")),
        (("--out", "/tmp", "--format", "csv"), ("[config.path_exists]", "--out")),
        (("--out", "a.bin"), ("[config.unknown_format]", "--out", ".json, .jsonl, .ndjson or .csv")),
        (("--features", "a.csv"), ("[config.unknown_format]", "--features", ".npz or .parquet")),
        (("--features", "a.npz", "--top", "5"), ("[config.conflict]", "where: --top")),
        (("--features", "a.npz", "--format", "csv"), ("[config.conflict]", "where: --format")),
        (("--features", "a.npz", "--out", "b.csv"), ("[config.conflict]", "where: --out")),
        (("--top", "0"), ("[config.out_of_range]", "--top", "'0'")),
        (("--batch-size", "many"), ("[config.wrong_type]", "--batch-size", "'many'")),
        (("--engine", "steam"), ("[config.unknown_name]", "engine", "steam")),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_the_option(
    run: Runner, model: str, album: Path, wrong: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = run(model, album, *wrong)
    assert (done.code, done.stdout) == (2, "")
    assert all(word in done.stderr for word in words)


def test_without_stdin_it_answers_what_was_named(model: str, album: Path) -> None:
    words = [sys.executable, "-m", "vitral", "predict", model, str(album), "--format", "jsonl", *ENGINE]
    done = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *words], capture_output=True, timeout=120, check=True)
    assert len(told(done.stdout.decode())) == 12


def test_paths_on_stdin_and_a_pipe_to_jq(model: str, album: Path) -> None:
    line = [sys.executable, "-m", "vitral", "predict", model, "-", "--format", "jsonl", *ENGINE]
    paths = "".join(f"{name}\n" for name in [*names(album), "nowhere.jpg"])
    done = subprocess.run(line, input=paths, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    assert all(word in done.stderr for word in ("nowhere.jpg: ", "error[data.bad_files]: 1 of 13 "))
    assert [row["path"] for row in told(done.stdout)] == [*names(album), "nowhere.jpg"]
    if shutil.which("jq"):
        assert subprocess.check_output(["jq", "-r", ".path"], input=done.stdout, text=True) == paths


@pytest.mark.slow
def test_shares_that_are_killed_and_run_again_are_the_whole_without_doubles(model: str, tmp_path: Path) -> None:
    photos(tmp_path / "in", 40)
    shares, delays = ["1/2", "2/2"], [0.01, 0.1, 0.2, 0.4]

    def words(share: str) -> list[str]:
        out = tmp_path / "out" / f"{share[0]}.jsonl"
        return [model, str(tmp_path / "in"), "--shard", share, "--out", str(out), "--batch-size", "2", *ENGINE]

    killed = [(words(share), int(signal.SIGKILL), delay) for delay in delays for share in shares]
    codes = forked([*killed, *((words(share), 0, 0.0) for share in shares)])
    assert codes.count(-signal.SIGKILL) >= 2
    assert codes[-2:] == [0, 0]
    assert files_in(tmp_path / "out") == ["1.jsonl", "2.jsonl"]
    found = sorted(row["path"] for path in (tmp_path / "out").iterdir() for row in told(path.read_text()))
    assert found == sorted(str(path) for path in (tmp_path / "in").iterdir())


def test_an_interrupt_leaves_with_130_and_no_half_part(model: str, tmp_path: Path) -> None:
    photos(tmp_path / "in", 60)
    words = [model, str(tmp_path / "in"), "--out", str(tmp_path / "1.jsonl"), "--batch-size", "1", *ENGINE]
    assert forked([(words, int(signal.SIGINT), 0.8)]) == [130]
    assert files_in(tmp_path) == ["in"]


def test_a_damaged_photo_is_skipped_and_with_lenient_it_is_named(
    run: Runner, model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photo = tmp_path / "half.jpg"
    photo.write_bytes(cut(encoded(noise(40, 40, 3).astype(np.uint8), "JPEG")))
    strict, lenient = (run(model, photo, "--format", "jsonl", *words) for words in ((), ("--lenient",)))
    assert (strict.code, lenient.code) == (3, 0)
    assert str(photo) in strict.stderr
    assert str(photo) in caplog.text
    assert [row["path"] for row in told(lenient.stdout)] == [str(photo)]


def test_a_limit_of_pixels_is_for_this_command(run: Runner, model: str, album: Path) -> None:
    done = run(model, album, "--format", "jsonl", "--max-pixels", "9")
    assert done.code == 3
    assert "--max-pixels" in done.stderr


def test_isolated_decoding_gives_the_same_answers(run: Runner, model: str, album: Path) -> None:
    words = (model, album, "--format", "jsonl")
    isolated = run(*words, "--isolate")
    assert isolated.code == 0
    assert isolated.stdout == run(*words).stdout


def test_an_interrupt_leaves_no_decoding_process_behind(model: str, tmp_path: Path) -> None:
    """The image makes its decoder hang, so that the threads that read wait for it."""
    (tmp_path / "hang.gif").write_bytes(breaking("hang"))
    (tmp_path / "site").mkdir()
    line = [sys.executable, "-m", "vitral", "predict", model, str(tmp_path / "hang.gif"), "--isolate", *ENGINE]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which a shell in the background may have ignored
    with (
        breakable(tmp_path / "site"),
        subprocess.Popen(line, stdout=-1, stderr=-1, text=True, preexec_fn=heed) as process,  # noqa: PLW1509, no threads yet
    ):
        children: list[str] = []
        while not children and process.poll() is None:
            time.sleep(0.1)
            listed = Path(f"/proc/{process.pid}/task").glob("*/children")  # a thread starts it
            with suppress(OSError):  # a thread has ended
                children = [word for each in listed for word in each.read_text().split()]
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert children
    assert not any(Path(f"/proc/{child}").exists() for child in children)
