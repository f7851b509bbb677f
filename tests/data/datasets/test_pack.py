"""Packing: any source comes back as it was, whatever happened on the way."""

import errno
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import fsspec
import pytest

from tests.data.pictures import color, encoded
from tests.data.tars import sample, write_tar
from tests.data.trees import plant, refused_at
from tests.errors import raises
from tests.processes import run_forked
from vitral.core.errors import DataError
from vitral.data.datasets.pack import pack
from vitral.data.datasets.source import open_data
from vitral.data.samples import Samples

SIZE = 40_960  # four records of a tar


def packed(where: str | Path, out: Path, size: int = SIZE) -> Samples:
    pack(where, out, size)
    return open_data(str(out))


def digest(out: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


def folder(root: Path, each: int = 12) -> Path:
    return plant(root, [f"{name}/{number}.JPG" for name in ("zebra", "ant", "Крот") for number in range(each)])


def divided(root: Path) -> str:
    names = ["train/ant/é 1.jpg", "train/bee/1.v2.png", "val/bee/2.jpg", "test/ant/3.webp", "train/ant/notes.txt"]
    return str(plant(root, names))


def manifest(root: Path) -> str:
    plant(root, ["1.jpg", "raw/2.jpg"])
    (root / "raw/3").write_bytes(encoded(color(), "PNG"))
    (root / "list.csv").write_text("path,label,split\n1.jpg,b,train\nraw/2.jpg,a,train\nraw/3,b,test\n")
    return str(root / "list.csv")


def tars(root: Path) -> str:
    write_tar(root / "train-0.tar", [*sample("1", "10"), *sample("2", "9"), *sample("3", "9")])
    return str(root)


SOURCES = {
    "folder": lambda root: str(folder(root)),
    "folder with splits": divided,
    "one image a class": lambda root: str(folder(root, 1)),
    "manifest": manifest,
    "shards": tars,
    "sample": lambda root: "sample",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_set_comes_back_as_it_was(tmp_path: Path, source: object) -> None:
    assert callable(source)
    before = open_data(source(tmp_path / "data"))
    after = packed(before.where, tmp_path / "out", 400_000)
    assert (after.classes, after.items, after.notes) == (before.classes, before.items, before.notes)
    assert [after.read(item) for item in after.items] == [before.read(item) for item in before.items]
    assert after.fingerprint() == before.fingerprint()
    assert json.loads((tmp_path / "out/shards.json").read_bytes())["fingerprint"] == before.fingerprint()


def test_a_pack_packed_again_is_the_same_to_the_byte(tmp_path: Path) -> None:
    index = pack(folder(tmp_path / "data"), tmp_path / "one", SIZE)
    assert re.fullmatch(r"Index\([\d,]+ images of \d+ classes, \d+ shards, [\d,]+ bytes\)", repr(index))
    packed(tmp_path / "one", tmp_path / "two")
    assert digest(tmp_path / "one") == digest(tmp_path / "two")


def test_a_name_that_is_not_unicode_comes_back(tmp_path: Path) -> None:
    folder(tmp_path / "data")
    with open(os.path.join(os.fsencode(tmp_path), b"data", b"ant", b"\xff.jpg"), "wb") as file:
        file.write(b"odd")
    after = packed(tmp_path / "data", tmp_path / "out")
    assert after.store.read("ant/\udcff.jpg") == b"odd"


def test_the_tars_are_what_other_readers_expect(tmp_path: Path) -> None:
    before = open_data(str(folder(tmp_path / "data")))
    pack(before, tmp_path / "out", SIZE)
    classes = (tmp_path / "out/classes.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert classes == ["ant", "zebra", "Крот"]
    found: dict[str, tuple[str, str, bytes]] = {}
    for split in ("train", "val"):
        keys: list[str] = []
        for path in sorted((tmp_path / "out").glob(f"{split}-*.tar")):
            with tarfile.open(path) as tar:
                members = tar.getmembers()
                assert {(info.mtime, info.uid, info.gid, info.uname, info.mode) for info in members} == {
                    (0, 0, 0, "", 0o644)
                }
                bodies = [tar.extractfile(info) for info in members]
                content = {info.name: body.read() for info, body in zip(members, bodies, strict=True) if body}
            assert path.stat().st_size <= SIZE
            for key in dict.fromkeys(name.split(".")[0] for name in content):
                about = json.loads(content.pop(f"{key}.json"))
                label = classes[int(content.pop(f"{key}.cls"))]
                assert label == about["label"]
                found[about["name"]] = (label, about["split"], content.pop(f"{key}.jpg"))
                keys.append(key)
            assert content == {}
        assert keys == [f"{number:08}" for number in range(len(keys))]
    assert found == {row.name: (row.label, row.split, row.name.encode()) for row in before.rows()}


STOPPED = """
import os, sys
from pathlib import Path
from vitral.data.datasets.source import open_data
from vitral.data.datasets.pack import pack

left = int(sys.argv[3])

def tell(count):
    global left
    left -= count
    if left <= 0:
        os._exit(9)

pack(open_data(sys.argv[1]), Path(sys.argv[2]), 40960, tell)
"""


@pytest.mark.parametrize("images", [1, 16, 29, 36])
@pytest.mark.sampled(2)
def test_a_pack_that_was_stopped_goes_on_and_ends_in_the_same_bytes(tmp_path: Path, images: int) -> None:
    data, out = folder(tmp_path / "data"), tmp_path / "out"
    assert run_forked(str(data), str(out), str(images), code=STOPPED).returncode == 9
    for address in (out, *([out / "*.tar"] if list(out.glob("*.tar")) else [])):
        with raises("data.unfinished_pack", out, "vitral pack"):
            open_data(str(address))
    finished = {path: path.stat().st_ino for path in out.glob("*.tar")}
    packed(data, out)
    assert {path: path.stat().st_ino for path in finished} == finished
    packed(data, tmp_path / "straight")
    assert digest(out) == digest(tmp_path / "straight")


def interrupt(count: int) -> None:
    raise KeyboardInterrupt


def test_a_finished_pack_is_left_alone(tmp_path: Path) -> None:
    data, out = folder(tmp_path / "data"), tmp_path / "out"
    packed(data, out)
    before = {path: path.stat().st_ino for path in out.iterdir()}
    packed(data, out)
    assert {path: path.stat().st_ino for path in out.iterdir()} == before


def test_a_damaged_shard_is_named_and_written_again(tmp_path: Path) -> None:
    data, out = folder(tmp_path / "data"), tmp_path / "out"
    packed(data, out)
    whole = digest(out)
    shard = out / "train-00000.tar"
    untouched = {path: path.stat().st_ino for path in out.glob("*.tar") if path != shard}
    shard.write_bytes(shard.read_bytes()[:-1])
    with raises("data.bad_archive", "40,960", "40,959") as caught:
        open_data(str(out))
    assert refused_at(caught) == str(shard)
    with pytest.raises(KeyboardInterrupt):
        pack(open_data(str(data)), out, SIZE, interrupt)
    with raises("data.unfinished_pack", out):
        open_data(str(out))
    packed(data, out)
    assert digest(out) == whole
    assert {path: path.stat().st_ino for path in untouched} == untouched
    shard.unlink()
    with raises("data.missing_file", shard):
        open_data(str(out))


def test_every_damaged_shard_of_a_pack_is_a_fault(tmp_path: Path) -> None:
    here = packed(folder(tmp_path / "data"), tmp_path / "out")
    damaged, gone, *_ = sorted((tmp_path / "out").glob("*.tar"))
    damaged.write_bytes(b"cut")
    gone.unlink()
    faults: list[DataError] = []
    samples = open_data(str(tmp_path / "out"), on_fault=faults.append)
    assert [(fault.code, fault.where) for fault in faults] == [
        ("data.bad_archive", str(damaged)),
        ("data.missing_file", str(gone)),
    ]
    assert 0 < len(samples.items) < len(here.items)
    assert samples.classes == here.classes


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_a_pack_that_was_copied_elsewhere_opens_by_its_index(tmp_path: Path, protocol: str) -> None:
    here = packed(folder(tmp_path / "data"), tmp_path / "out")
    system, root = fsspec.core.url_to_fs(f"{protocol}://{tmp_path}/copy")
    system.makedirs(root)
    for path in (tmp_path / "out").iterdir():
        system.pipe_file(f"{root}/{path.name}", path.read_bytes())
    there = open_data(f"{protocol}://{tmp_path}/copy")
    assert (there.classes, there.items) == (here.classes, here.items)
    assert [there.read(item) for item in there.items] == [here.read(item) for item in here.items]
    system.pipe_file(f"{root}/val-00000.tar", b"cut")
    with raises("data.bad_archive", "copy/val-00000.tar", 3):
        open_data(f"{protocol}://{tmp_path}/copy")


@pytest.mark.parametrize("stranger", ["notes.txt", "train-00000.tar", "shards.json", "cat/1.jpg"])
def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path: Path, stranger: str) -> None:
    out = plant(tmp_path / "out", [stranger])
    with raises("config.path_exists") as caught:
        packed(folder(tmp_path / "data"), out)
    assert caught.value.where == str(out)
    assert [path for path in out.rglob("*") if path.is_file()] == [out / stranger]
    assert (out / stranger).read_bytes() == stranger.encode()


def test_a_pack_of_other_data_or_another_size_is_not_overwritten(tmp_path: Path) -> None:
    packed(folder(tmp_path / "data"), tmp_path / "out")
    before = digest(tmp_path / "out")
    for data, size in ((folder(tmp_path / "other", 11), SIZE), (tmp_path / "data", 2 * SIZE)):
        with raises("config.path_exists", tmp_path / "out"):
            packed(data, tmp_path / "out", size)
    assert digest(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("out", "code"),
    [("data/out", "config.conflict"), ("data", "config.conflict"), ("s3://bucket/set", "config.unsupported")],
)
def test_a_place_that_cannot_take_shards_is_refused(tmp_path: Path, out: str, code: str) -> None:
    data = folder(tmp_path / "data")
    with raises(code, Path(out)):
        packed(data, Path(out) if "://" in out else tmp_path / out)


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    plant(tmp_path, ["out"])
    with raises("file.write_failed", os.strerror(errno.EEXIST).lower()) as caught:
        packed(folder(tmp_path / "data"), tmp_path / "out")
    assert caught.value.where == str(tmp_path / "out")


def test_an_image_that_changed_on_the_way_is_named(tmp_path: Path) -> None:
    samples = open_data(str(folder(tmp_path / "data")))

    def meddle(count: int) -> None:
        for item in samples.items:
            (tmp_path / "data" / item.name).write_bytes(b"longer than it was before")

    with raises("data.changed", 25):
        pack(samples, tmp_path / "out", SIZE, meddle)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["shards.unfinished.json"]


def test_more_than_the_disk_holds_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder(tmp_path / "data")
    os.truncate(tmp_path / "data/ant/0.JPG", 1 << 43)
    with raises("file.no_space", tmp_path / "out", "8,796,"):
        packed(tmp_path / "data", tmp_path / "out")
    assert list((tmp_path / "out").glob("*.tar*")) == []


def run(*arguments: object, limit: int = -1) -> subprocess.CompletedProcess[str]:
    """The program; no file that it writes may have more bytes than the limit, as on a disk that is full."""

    def confine() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    line = [sys.executable, "-m", "vitral", "pack", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, preexec_fn=confine)


def test_a_disk_that_is_full_leaves_no_half_shard(tmp_path: Path) -> None:
    data, out = folder(tmp_path / "data"), tmp_path / "out"
    (data / "ant/0.JPG").write_bytes(bytes(100_000))
    done = run(data, out, "--shard-size", "40960B", limit=50_000)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error[file.write_failed]: ")
    assert os.strerror(errno.EFBIG).lower() in done.stderr
    assert not list(out.glob("*.tmp"))
    assert all(path.stat().st_size <= SIZE for path in out.glob("*.tar"))
    again = run(data, out, "--shard-size", "40960B")
    assert (again.returncode, again.stdout) == (0, f"{out}\n")
    packed(data, tmp_path / "straight")
    assert digest(out) == digest(tmp_path / "straight")


def test_the_command_packs_and_tells_what_it_made(tmp_path: Path) -> None:
    done = run(folder(tmp_path / "data"), tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out'}\n")
    assert re.findall(r"[\d.]+", done.stderr) == ["36", "2", "0.1"]
    assert run(tmp_path / "data", tmp_path / "out", "--quiet").stderr == ""
    assert len(open_data(str(tmp_path / "out")).items) == 36


def test_a_mistaken_size_is_a_mistake_in_the_command(tmp_path: Path) -> None:
    done = run(folder(tmp_path / "data"), tmp_path / "out", "--shard-size", "many")
    assert done.returncode == 2
    assert done.stderr.startswith("error[config.wrong_type]: ")
    assert "'many'" in done.stderr
