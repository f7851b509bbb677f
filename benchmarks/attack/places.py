"""What is no regular file, and names and folders made to confuse: only the bad one is lost."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import vitral
from benchmarks.attack.case import Case
from benchmarks.attack.images import encoded, predict

DEVICES = ("/dev/zero", "/dev/full", "/proc/self/mem", "/proc/kmsg", "/dev/stdin")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.close()  # the file stays


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"\xff\xd8\xff\xe0")
        file.truncate(6 << 30)


def link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": fifo,
    "socket": listening,
    "sparse file of 6 GB": sparse,
    "link to itself": lambda path: path.symlink_to(path.name),
    **{f"link to {device}": link(device) for device in DEVICES},
}
ROLES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "image": ("a.jpg", predict),
    "weights": ("a.safetensors", vitral.load),
    "array": ("a.npz", vitral.load),
    "config of a bundle": ("config.json", lambda path: vitral.load(path.parent)),
    "manifest": ("a.csv", lambda path: vitral.open_data(str(path))),
    "tar": ("a.tar", lambda path: vitral.open_data(str(path))),
    "recipe": ("recipe.json", lambda path: vitral.train("sample", recipe=path, out=str(path.parent / "run"))),
}


def special(kind: Callable[[Path], None], name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        kind(folder / name)
        return folder / name

    return make


def deep_folder(folder: Path) -> Path:
    """A photo 1,200 folders down."""
    place = os.open(folder, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    file = os.open("a.jpg", os.O_WRONLY | os.O_CREAT, dir_fd=place)
    os.write(file, encoded("jpeg", 0))
    os.close(file)
    os.close(place)
    return folder


def ring(folder: Path) -> Path:
    """Folders of classes that link to each other in a ring."""
    for label in ("one", "two"):
        (folder / label).mkdir()
        (folder / label / "0.jpg").write_bytes(encoded("jpeg", 0))
        (folder / label / "up").symlink_to(folder)
    return folder


def cases() -> Iterator[Case]:
    for kind, create in KINDS.items():
        for role, (name, use) in ROLES.items():
            yield Case("special files", f"{kind} as {role}", special(create, name), use)
    yield Case(
        "special files", "1,200 folders deep", deep_folder, lambda folder: vitral.open_data(str(folder)), "either"
    )
    yield Case("special files", "a ring of links", ring, lambda folder: vitral.open_data(str(folder)), "either")
