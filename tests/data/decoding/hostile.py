"""Files that break the process which decodes them, as an unknown bug of a native library might.

There are no such files to be had, so the children of a test import a `sitecustomize` that makes Pillow do what the
comment of a GIF says.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from tests.data.pictures import encoded

BREAKING = """
import os, signal, time
from PIL import GifImagePlugin

real = GifImagePlugin.GifImageFile.load
kept = []

def load(image):
    match image.info.get("comment", b""):
        case b"crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"exit":
            os._exit(7)
        case b"hang":
            time.sleep(1_000)
        case b"stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case b"spin":
            while True:
                pass
        case b"eat":
            kept.append(bytearray(600_000_000))
        case b"write":
            with open(__file__ + ".written", "w") as file:
                file.write("written")
    return real(image)

GifImagePlugin.GifImageFile.load = load
"""


def breaking(how: str) -> bytes:
    """A GIF that breaks its decoder in a way."""
    return encoded(Image.new("P", (16, 16)), "GIF", comment=how.encode())


@contextmanager
def breakable(folder: Path) -> Iterator[None]:
    """Child processes that are started meanwhile break at such files."""
    (folder / "sitecustomize.py").write_text(BREAKING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
        yield
