"""The files of the page: all there, none elsewhere, and nothing of a name becomes markup."""

import json
import re
from io import BytesIO

import pytest
from PIL import Image

from vitral.data.datasets.named import CLASSES
from vitral.serving.page.page import PageFile, page_files

MAX_BYTES = 123_456


@pytest.fixture(scope="module")
def files() -> dict[str, PageFile]:
    return page_files({"cats": ("tabby",), "</script><b>": CLASSES}, MAX_BYTES)


def settings(files: dict[str, PageFile]) -> dict[str, object]:
    found = re.search(r'id="settings">(.*?)</script>', files["/"].content.decode())
    assert found
    return dict(json.loads(found[1]))


def test_every_file_that_the_page_asks_for_is_served(files: dict[str, PageFile]) -> None:
    html = files["/"].content.decode()
    wanted = set(re.findall(r'(?:href|src)="(page/[^"]+)"', html))
    for path, file in files.items():
        if path.endswith(".js"):
            wanted |= {f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', file.content.decode())}
    assert {f"/{path}" for path in wanted} <= set(files)
    scripts = {path for path in files if path.endswith(".js")}
    assert scripts - {"/page/page.js"} <= {f"/{path}" for path in wanted}, "a script that nobody imports"


def test_no_file_names_another_host(files: dict[str, PageFile]) -> None:
    text = "\n".join(file.content.decode() for path, file in files.items() if not path.endswith(".png"))
    hosts = set(re.findall(r"(?:https?:)?//[a-z0-9.]+\.[a-z]+[^\s\"'`]*", text))
    assert hosts <= {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_policy_forbids_what_the_html_does_without(files: dict[str, PageFile]) -> None:
    html = files["/"].content.decode()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*(src=|application/json))", html)


def test_names_of_models_cannot_end_the_script_they_stand_in(files: dict[str, PageFile]) -> None:
    assert files["/"].content.decode().count("</script>") == 3
    assert settings(files)["mostBytes"] == MAX_BYTES
    assert set(settings(files)["examples"]) == {"</script><b>"}  # type: ignore[call-overload]


def test_a_model_of_the_bundled_images_gets_one_of_each_class(files: dict[str, PageFile]) -> None:
    paths = [path for path in files if path.startswith("/page/examples/")]
    assert len(paths) == len(CLASSES)
    assert "/page/examples/ankle-boot.png" in paths
    for path in paths:
        picture = Image.open(BytesIO(files[path].content))
        assert (picture.format, picture.size, picture.mode) == ("PNG", (28, 28), "L")
    assert not [path for path in page_files({"cats": ("tabby",)}, 1) if "examples" in path]
