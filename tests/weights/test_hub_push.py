"""Uploads to the hub. No test reaches it: the library is a stand-in."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import vitral
from tests.errors import raises
from tests.weights.bundles import bundle_of, tensors_of
from vitral import cli
from vitral.weights.bundle import write_bundle

ADDRESS = "https://huggingface.co/owner/name"


class Hub(ModuleType):
    """What is used of huggingface_hub, what it was asked for, and the files that it was given."""

    def __init__(self) -> None:
        super().__init__("huggingface_hub")
        self.trouble: Exception | None = None
        self.asked, self.files = list[tuple[str, dict[str, Any]]](), set[str]()

    def HfApi(self) -> "Hub":
        return self

    def create_repo(self, repo_id: str, **settings: Any) -> str:
        self.asked.append(("create_repo", {"repo_id": repo_id} | settings))
        return ADDRESS

    def upload_folder(self, **settings: Any) -> None:
        self.asked.append(("upload_folder", settings))
        self.files = {file.name for file in Path(settings["folder_path"]).iterdir()}
        if self.trouble:
            raise self.trouble


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    module = Hub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # restored afterwards: --offline sets it
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "photos"
    home.mkdir()
    write_bundle(home, bundle_of(), tensors_of(), "a card")
    return home


@pytest.mark.parametrize("name", ["owner/name", "hf:owner/name"])
@pytest.mark.parametrize("private", [False, True])
def test_a_folder_is_uploaded_to_a_repository_that_may_exist(hub: Hub, folder: Path, name: str, private: bool) -> None:
    assert vitral.push_to_hub(folder, name, private=private) == ADDRESS
    created = {"repo_id": "owner/name", "private": private, "exist_ok": True}
    uploaded = {"repo_id": "owner/name", "folder_path": str(folder), "commit_message": "Upload photos"}
    assert hub.asked == [("create_repo", created), ("upload_folder", uploaded)]
    assert {"model.safetensors", "config.json", "README.md"} <= hub.files


@pytest.mark.parametrize("name", ["", "hf:", "name", "a/b/c", "a/..", "owner/name@v1", "https://huggingface.co/a/b"])
def test_what_is_no_repository_is_refused(hub: Hub, folder: Path, name: str) -> None:
    with raises("config.invalid_name", "owner/name"):
        vitral.push_to_hub(folder, name)
    assert hub.asked == []


def test_a_folder_without_weights_is_refused(hub: Hub, folder: Path) -> None:
    for path in (folder.parent, folder / "missing", folder / "config.json"):
        with raises("weights.not_found", path):
            vitral.push_to_hub(path, "owner/name")
    assert hub.asked == []


@pytest.mark.parametrize("trouble", [ConnectionError("no route\nlong story"), RuntimeError()])
def test_a_failed_upload_loses_nothing_and_says_how_to_go_on(hub: Hub, folder: Path, trouble: Exception) -> None:
    hub.trouble, before = trouble, sorted(folder.iterdir())
    reason = "no route" if str(trouble) else "RuntimeError"
    again = f"hf upload owner/name {folder} --private"
    with raises("weights.upload_failed", "hf:owner/name", reason, again) as caught:
        vitral.push_to_hub(folder, "owner/name", private=True)
    assert "\n" not in str(caught.value)
    assert sorted(folder.iterdir()) == before


def test_without_the_package_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with raises("config.missing_package", "pip install 'vitral[hub]'"):
        vitral.push_to_hub(folder, "owner/name")


def convert(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as left:
        cli.main(["convert", *arguments])
    return left.value.code


def test_the_command_uploads_what_it_wrote(hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.parent / "new"
    assert convert(str(folder), str(out), "--push", "hf:owner/name", "--private") == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert hub.asked[0] == ("create_repo", {"repo_id": "owner/name", "private": True, "exist_ok": True})
    assert hub.files == {file.name for file in out.iterdir()} >= {"model.safetensors", "certificate.json"}


def test_the_command_keeps_the_folder_of_a_failed_upload(hub: Hub, folder: Path) -> None:
    hub.trouble = ConnectionError("no route")
    assert convert(str(folder), str(folder.parent / "new"), "--push", "hf:owner/name") == 1
    assert vitral.load(folder.parent / "new").bundle.classes == bundle_of().classes


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--push", "hf:name"), "config.invalid_name"),
        (("--push", "hf:owner/name", "--offline"), "config.conflict"),
        (("--private",), "config.conflict"),
    ],
)
def test_the_command_refuses_before_it_writes(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: str
) -> None:
    assert convert(str(folder), str(folder.parent / "new"), *arguments) == 2
    assert capsys.readouterr().err.startswith(f"error[{code}]: ")
    assert not (folder.parent / "new").exists()
    assert hub.asked == []
