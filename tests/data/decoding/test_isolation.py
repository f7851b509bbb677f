"""Files that are decoded in child processes: the same pixels and errors, and a broken child costs one file."""

import gc
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.decoding.hostile import breakable, breaking
from tests.data.pictures import cut, encoded, exif, noise, smooth
from tests.errors import raises
from vitral.core.config import Size
from vitral.core.errors import ConfigError, VitralError
from vitral.data.decoding import isolation, memory
from vitral.data.decoding.decode import ImageDecoder, decode_image
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.isolation import IsolatedDecoder, Isolation
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import Preprocessing

PHOTO = smooth(300, 420)
DEEP = (noise(40, 50, 3) * 257).astype(np.uint16)
FILES = {
    "JPEG": encoded(PHOTO, "JPEG"),
    "turned": encoded(PHOTO, "JPEG", exif=exif(6)),
    "CMYK": encoded(Image.fromarray(PHOTO).convert("CMYK"), "JPEG"),
    "alpha": encoded(noise(40, 50, 4).astype(np.uint8), "PNG"),
    "gray of 16 bits": encoded(Image.fromarray(DEEP[..., 0]), "PNG"),
    "palette": encoded(Image.fromarray(PHOTO).convert("P"), "GIF"),
    "TIFF": encoded(PHOTO, "TIFF", compression="tiff_lzw"),
    "WebP": encoded(PHOTO, "WEBP"),
    "AVIF": encoded(PHOTO, "AVIF"),
    "BMP": encoded(PHOTO, "BMP"),
}
BAD = {
    "cut": cut(FILES["JPEG"]),
    "text": b"not an image",
    "damaged": FILES["alpha"].replace(b"IDAT", b"IDAU", 1),
    "small": encoded(PHOTO[:4, :4], "PNG"),
}
CHOICES = [Decoding(jpeg_scale="triple"), Decoding(channels=1, jpeg_scale="full")]


def whole(size: Size) -> Size:
    return size


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IsolatedDecoder]:
    limits = Isolation(processes=2)
    with breakable(tmp_path_factory.mktemp("site")), limits.build() as decoder:
        yield decoder


@pytest.mark.parametrize("decoding", CHOICES, ids=lambda choice: choice.jpeg_scale)
def test_pixels_are_those_of_this_process(decoder: IsolatedDecoder, decoding: Decoding) -> None:
    needs = Preprocessing(image_size=Size(20, 28), decoding=decoding, crop=CenterCrop())
    for name, data in FILES.items():
        ours, theirs = (decode(data, name, decoding, lambda _: Size(30, 30)) for decode in (decode_image, decoder))
        assert theirs.header == ours.header
        np.testing.assert_array_equal(theirs.pixels, ours.pixels, err_msg=name)
        assert theirs.pixels.flags.writeable
        np.testing.assert_array_equal(needs.pixels(data, name, decoder), needs.pixels(data, name))


def failure(decode: ImageDecoder, data: bytes) -> tuple[type, str, str, str, str]:
    with pytest.raises(VitralError) as caught:
        decode(data, "bad.jpg", Decoding(), whole)
    error = caught.value
    return type(error), error.code, error.message, error.where, error.hint


@pytest.mark.parametrize("kind", BAD)
def test_errors_are_those_of_this_process(decoder: IsolatedDecoder, kind: str) -> None:
    assert failure(decoder, BAD[kind]) == failure(decode_image, BAD[kind])


def test_a_lenient_decoder_names_damage(decoder: IsolatedDecoder) -> None:
    data, lenient = bytearray(FILES["alpha"]), Decoding(lenient=True)
    data[data.index(b"IEND") - 5] ^= 1  # of the checksum before
    found: list[list[tuple[str, str]]] = [[], []]
    decoders: tuple[ImageDecoder, ...] = (decode_image, decoder)
    for decode, damages in zip(decoders, found, strict=True):
        decode(bytes(data), "it", lenient, whole, lambda *each, to=damages: to.append(each))
    assert found[0] == found[1] != []


ENDS = {
    "crash": ("data.decoder_killed", "SIGSEGV"),
    "exit": ("data.decoder_killed", "exit code 7"),
    "eat": ("data.out_of_memory", ""),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_child_that_breaks_costs_only_its_file(decoder: IsolatedDecoder, how: str) -> None:
    code, detail = ENDS[how]
    with raises(code, "it.gif", detail):
        decoder(breaking(how), "it.gif", Decoding(), whole)
    assert decoder(FILES["JPEG"], "photo", Decoding(), whole).pixels.shape == (300, 420, 3)


SLOW = {"hang": "0.5 s", "stop": "0.5 s", "spin": "0.1 s of CPU"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", SLOW)
def test_a_child_that_does_not_end_is_ended(how: str, tmp_path: Path) -> None:
    limits = Isolation(processes=1, wall_seconds=30 if how == "spin" else 0.5, cpu_seconds=0.1)
    with breakable(tmp_path), limits.build() as decoder:
        with raises("data.decode_timeout", "it.gif", SLOW[how]):
            decoder(breaking(how), "it.gif", Decoding(), whole)
        assert children(decoder) == set()


def test_a_child_ends_by_itself_if_its_parent_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "PATIENCE", 0.5)
    with breakable(tmp_path), Isolation(processes=1, wall_seconds=0.25).build() as decoder:
        left: list[isolation._Child] = []
        monkeypatch.setattr(isolation._Child, "stop", lambda child: left.insert(0, child))  # as if there were no parent
        with raises("data.decode_timeout", "it.gif"):
            decoder(breaking("hang"), "it.gif", Decoding(), whole)
        assert left[0].process.wait(timeout=20) == -signal.SIGALRM
        left[0].socket.close()


def test_a_child_writes_no_files(tmp_path: Path) -> None:
    with breakable(tmp_path), Isolation(processes=1).build() as decoder, pytest.raises(VitralError):
        decoder(breaking("write"), "it.gif", Decoding(), whole)
    assert (tmp_path / "sitecustomize.py.written").stat().st_size == 0


def children(decoder: IsolatedDecoder) -> set[int]:
    return {child.process.pid for child in [*decoder._idle, *decoder._busy]}


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_threads_share_a_few_children_which_end_with_the_decoder() -> None:
    decoder = Isolation(processes=2).build()
    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(decoder, FILES["JPEG"], "it", Decoding(), whole) for _ in range(12)]
    assert all(job.result().pixels.shape == (300, 420, 3) for job in jobs)
    started = children(decoder)
    assert 1 <= len(started) <= 2
    del decoder
    gc.collect()
    assert not any(map(is_alive, started))


def test_memory_is_reserved_in_the_budget_of_the_parent(decoder: IsolatedDecoder) -> None:
    memory.set_budget(memory.thread_budget(64 * 300 * 420))  # a unit is a byte a pixel of this photo
    job = threading.Thread(target=decoder, args=(FILES["JPEG"], "it", Decoding(), whole))
    with memory.process_budget().reserve(10**12):  # all of it
        job.start()
        job.join(timeout=0.5)
        assert job.is_alive()
    job.join()
    memory.set_budget(memory.thread_budget(memory.DECODE_BYTES))


def test_an_error_of_the_crop_is_not_that_of_the_file(decoder: IsolatedDecoder) -> None:
    def refuse(size: Size) -> Size:
        raise ConfigError("no", code="config.unsupported")

    with raises("config.unsupported"):
        decoder(FILES["JPEG"], "it", Decoding(), refuse)


HEADER = {"format": "PNG", "mode": "RGB", "orientation": 1, "memory": 1, "height": 9, "width": 9}
LIES = {
    "no JSON": [b"\xff"],
    "another type": [b"[]"],
    "a format that does not exist": [json.dumps(HEADER | {"format": "EXE"}).encode()],
    "more pixels than the limit": [json.dumps(HEADER | {"height": 10**9}).encode()],
    "more pixels than it declares": [json.dumps(HEADER).encode(), b'{"shape": [10, 9, 3], "damages": []}', bytes(270)],
    "another number of channels": [json.dumps(HEADER).encode(), b'{"shape": [9, 9, 4], "damages": []}', bytes(324)],
    "too few pixels": [json.dumps(HEADER).encode(), b'{"shape": [9, 9, 3], "damages": []}', bytes(9)],
    "a message without end": [bytes(isolation.MESSAGE_BYTES + 1)],
}


@pytest.mark.parametrize("lie", LIES)
def test_wrong_answers_of_a_child_are_refused(lie: str) -> None:
    child = object.__new__(isolation._Child)
    child.process = subprocess.Popen(["sleep", "60"])
    child.socket, other = socket.socketpair()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
    for message in LIES[lie]:
        isolation._send(other, message, time.monotonic() + 5)
    with Isolation(processes=1).build() as decoder, other:
        decoder._idle.append(child)
        with raises("data.decoder_killed", "it"):
            decoder(b"data", "it", Decoding(), whole)
    assert child.process.returncode is not None


def test_the_working_directory_is_not_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    with Isolation(processes=1).build() as decoder:
        assert decoder(FILES["BMP"], "it", Decoding(), whole).pixels.size


def test_a_child_that_does_not_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Isolation(processes=1).build() as decoder, raises("run.lost_process", "exit code 3"):
        decoder(FILES["BMP"], "it", Decoding(), whole)
