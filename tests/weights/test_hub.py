"""Models of the hub. No test reaches it: the library is a stand-in, or the real one with nothing but its cache."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import vitral
from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.files import put
from vitral.weights.hub import fetch_weights, pinned_name

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class GatedError(OSError):
    pass


class MissingError(OSError):
    pass


class Hub(ModuleType):
    """What is used of huggingface_hub, and what it was asked for."""

    def __init__(self, cache: Path, trouble: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.cache, self.trouble, self.asked = cache, trouble, list[dict[str, Any]]()
        self.errors = SimpleNamespace(
            GatedRepoError=GatedError, RepositoryNotFoundError=MissingError, RevisionNotFoundError=MissingError
        )

    def snapshot_download(self, repo_id: str, **settings: Any) -> str:
        self.asked.append({"repo_id": repo_id} | settings)
        if self.trouble:
            raise self.trouble
        return str(cached(self.cache))


def cached(cache: Path) -> Path:
    """A model in the layout that the library has for its cache."""
    home = cache / "models--owner--name"
    for folder in (home / "refs", home / "snapshots"):
        folder.mkdir(parents=True, exist_ok=True)
    (home / "refs/main").write_text(COMMIT)
    return put(home / "snapshots" / COMMIT, reference("timm_vit").weights)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    module = Hub(tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module


@pytest.mark.parametrize(
    ("where", "revision"),
    [("hf:owner/name", None), ("hf:owner/name@v1.0", "v1.0"), ("hf:owner/name@refs/pr/7", "refs/pr/7")],
)
@pytest.mark.parametrize("offline", [False, True])
def test_a_model_is_fetched_at_its_revision_without_any_pickle(
    hub: Hub, where: str, revision: str | None, offline: bool
) -> None:
    found = fetch_weights(where, offline)
    assert (found.path / "model.safetensors").is_file()
    assert found.source == f"the hub's owner/name at {COMMIT}"
    wanted = ["*.safetensors", "*.npz", "*.json", "manifest.sig"]
    asked = {"repo_id": "owner/name", "revision": revision, "local_files_only": offline, "allow_patterns": wanted}
    assert hub.asked == [asked | {"ignore_patterns": ["open_clip_*"]}]


def test_the_commit_is_kept_with_the_model(hub: Hub) -> None:
    bundle = vitral.load("hf:owner/name", settings={"mixer.heads": 3, "image_size": "32x48"}).bundle
    assert bundle.source == f"timm's Vision Transformer, from the hub's owner/name at {COMMIT}"


def test_nothing_but_the_prefix_reaches_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert fetch_weights("runs/photos", False) == (Path("runs/photos"), "")
    assert fetch_weights("~/a/b", False).path == Path.home() / "a/b"
    with raises("weights.not_found", "hf:google/vit"):
        fetch_weights("google/vit", False)
    assert hub.asked == []


@pytest.mark.parametrize(
    "where", ["hf:", "hf:name", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b@c/../../d", "hf:a/b@", "hf:a b/c"]
)
def test_what_is_no_name_of_the_hub_is_refused(hub: Hub, where: str) -> None:
    with raises("config.invalid_name", "hf:owner/name@revision") as caught:
        fetch_weights(where, False)
    assert caught.value.where == where
    assert hub.asked == []


@pytest.mark.parametrize(
    ("trouble", "offline", "code", "value"),
    [
        (GatedError("403: gated\nlong story"), False, "weights.access_denied", "hf auth login"),
        (MissingError("404: no such thing"), False, "weights.not_found", "404"),
        (ConnectionError("no route"), False, "weights.download_failed", "no route"),
        (FileNotFoundError("not in the cache"), True, "weights.not_cached", "not in the cache"),
        (RuntimeError(), False, "weights.download_failed", "RuntimeError"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(
    hub: Hub, trouble: Exception, offline: bool, code: str, value: str
) -> None:
    hub.trouble = trouble
    with raises(code, "hf:owner/name", value) as caught:
        fetch_weights("hf:owner/name", offline)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with raises("config.missing_package", "pip install 'vitral[hub]'") as caught:
        fetch_weights("hf:owner/name", False)
    assert caught.value.exit_code == 2


def test_the_library_itself_finds_what_is_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants", reason="pip install 'vitral[hub]'")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = cached(tmp_path)
    for where in ("hf:owner/name", f"hf:owner/name@{COMMIT}"):
        assert fetch_weights(where, True) == (folder, f"the hub's owner/name at {COMMIT}")
    with raises("weights.not_cached", "hf:owner/other"):
        fetch_weights("hf:owner/other", True)


def test_an_empty_name_is_not_the_folder_at_hand() -> None:
    with raises("config.missing_value", "MODEL"):
        fetch_weights("", offline=False)


@pytest.mark.parametrize(
    ("where", "revision"), [("dinov2-small", None), ("dinov2-small@v1", "v1"), ("hf:facebook/dinov2-small", None)]
)
def test_a_short_name_is_the_hub_model(hub: Hub, where: str, revision: str | None) -> None:
    assert fetch_weights(where, False).source == f"the hub's facebook/dinov2-small at {COMMIT}"
    assert pinned_name(where) == f"hf:facebook/dinov2-small@{COMMIT}"
    assert {(asked["repo_id"], asked["revision"]) for asked in hub.asked} == {("facebook/dinov2-small", revision)}


def test_a_model_that_is_loaded_by_its_short_name_records_the_hub_id(hub: Hub) -> None:
    settings = {"mixer.heads": 3, "image_size": "32x48"}
    bundle = vitral.load("dinov2-small", settings=settings).bundle
    assert bundle.source == f"timm's Vision Transformer, from the hub's facebook/dinov2-small at {COMMIT}"


def test_a_file_or_folder_comes_before_a_short_name(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dinov2-small").mkdir()
    assert fetch_weights("dinov2-small", False) == (Path("dinov2-small"), "")
    assert pinned_name("dinov2-small") == str(tmp_path / "dinov2-small")
    assert hub.asked == []


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("dinov2-smal", "'dinov2-small'"),
        ("DINOv2-Small", "'dinov2-small'"),
        ("B/16", "create_model('B/16')"),
        ("B/16", "load('augreg-b16')"),
        ("ViT-L/16", "load('augreg-l16')"),
        ("vit_base_patch16_224", "create_model('vit_base_patch16_224')"),
    ],
)
def test_a_name_that_is_no_model_gets_the_nearest(hub: Hub, where: str, value: str) -> None:
    with raises("weights.not_found", where, value):
        vitral.load(where)
    assert hub.asked == []


def test_an_architecture_without_published_weights_is_not_offered_any(hub: Hub) -> None:
    with raises("weights.not_found", "create_model('G/14')") as caught:
        vitral.load("G/14")
    assert "load(" not in caught.value.hint
