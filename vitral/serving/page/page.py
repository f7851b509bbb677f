"""The files of the page, read once and served from memory: no path of a request is ever opened."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vitral import __version__
from vitral.data.datasets.named import CLASSES, BundledReader
from vitral.html.heatmap import color_stops
from vitral.html.page import LOOK, render, script_json

FOLDER = Path(__file__).parent
SHARED = ("look.css", "interactive.css", "heatmap.js")  # with the other pages of vitral
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A file of the page as it is sent."""

    media_type: str
    content: bytes


def page_files(classes: Mapping[str, Sequence[str]], max_bytes: int) -> dict[str, PageFile]:
    """The files by their path, `/` and `/page/...`, for the models and their classes.

    A photo of more than `max_bytes` is not sent. A model of the bundled images gets some of them as examples.
    """
    own = [path for pattern in ("*.css", "*.svg", "scripts/*.js") for path in FOLDER.glob(pattern)]
    own += [LOOK / name for name in SHARED]
    files = {f"/page/{path.name}": PageFile(MEDIA_TYPES[path.suffix], path.read_bytes()) for path in own}
    examples = {name: example_images() for name, names in classes.items() if tuple(names) == CLASSES}
    for images in examples.values():
        files |= {f"/{path}": PageFile(MEDIA_TYPES[".png"], content) for path, content in images.items()}
    settings = {
        "version": __version__,
        "mostBytes": max_bytes,
        "examples": {
            name: [{"label": label, "path": path} for label, path in zip(CLASSES, images, strict=True)]
            for name, images in examples.items()
        },
    }
    html = render(FOLDER / "index.html", colors=color_stops(), settings=script_json(settings))
    return files | {"/": PageFile(MEDIA_TYPES[".html"], html.encode())}


def example_images() -> dict[str, bytes]:
    """One test image of each bundled class as PNG, by its path, in the order of the classes."""
    images, labels = BundledReader().load("test")
    found = {}
    for label, name in enumerate(CLASSES):
        file = BytesIO()
        Image.fromarray(images[int((labels == label).argmax())]).save(file, "png")
        found[f"page/examples/{name.lower().replace('/', '-').replace(' ', '-')}.png"] = file.getvalue()
    return found
