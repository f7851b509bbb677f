"""Tar files for the tests of shards, written by the standard library."""

import os
import tarfile
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

File = tuple[str, bytes]


def write_tar(path: Path, files: Iterable[File | tarfile.TarInfo], form: int = tarfile.PAX_FORMAT) -> Path:
    """Make a tar of names with their content, and of headers that stand for themselves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(files, form))
    return path


def tar_bytes(files: Iterable[File | tarfile.TarInfo], form: int = tarfile.PAX_FORMAT) -> bytes:
    stream = BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for file in files:
            if isinstance(file, tarfile.TarInfo):
                tar.addfile(file)
                continue
            info = tarfile.TarInfo(file[0])
            info.size = len(file[1])
            tar.addfile(info, BytesIO(file[1]))
    return stream.getvalue()


def sample(key: str, label: str, ending: str = ".jpg") -> list[File]:
    """An image whose bytes are its name, and its label."""
    return [(f"{key}{ending}", os.fsencode(f"{key}{ending}")), (f"{key}.cls", label.encode())]


def odd(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """A member that is no plain file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info
