"""Bundles: what is read is what was written, or the reason why not."""

import errno
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

import vitral
from tests.errors import raises
from tests.models.variants import VARIANTS, small
from tests.training.scenes import fill, kill, until
from tests.training.states import identical
from tests.weights.bundles import TINY, bundle_of, tensors_of
from tests.weights.damage import DAMAGE, reseal, rewrite
from vitral.core.config import Size, union_members
from vitral.core.storage import STORAGE, WRITE_HINTS, Storage
from vitral.data.decoding.header import Decoding
from vitral.data.loading.shared_memory import FORK
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import IMAGENET, Preprocessing
from vitral.models import NoHead, Resnet, Vit
from vitral.tasks import TaskConfig
from vitral.weights.bundle import Bundle, is_bundle, read_bundle, write_bundle

CARD = "# Ünlü\n"
FIRST = Path(__file__).parent.parent / "fixtures/bundle_format_1"


def write(folder: Path, seed: int = 0, disk: Storage = STORAGE) -> None:
    write_bundle(folder, bundle_of(), tensors_of(seed=seed), f"{CARD}{seed}", disk)


def seed_of(folder: Path) -> int | None:
    """Which of the tiny bundles is read there; None when there is none. It must be whole."""
    if not is_bundle(folder):
        return None
    read = read_bundle(folder)
    assert read.bundle == bundle_of()
    return next(seed for seed in range(9) if identical({"": read.tensors}, {"": tensors_of(seed=seed)}))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("model", VARIANTS.values(), ids=VARIANTS)
def test_a_bundle_of_every_kind_of_model_comes_back_to_the_bit(tmp_path: Path, model: Vit | Resnet) -> None:
    bundle, tensors = bundle_of(model), tensors_of(model)
    write_bundle(tmp_path / "best", bundle, tensors, CARD)
    read = read_bundle(tmp_path / "best")
    assert read.bundle == bundle
    assert identical({"": read.tensors}, {"": tensors})


def test_a_bundle_is_four_files_that_say_what_the_weights_need(tmp_path: Path) -> None:
    view = Preprocessing(image_size=Size(32, 48), crop=CenterCrop(filter="bicubic"), normalize=IMAGENET)
    write_bundle(tmp_path / "b", bundle_of(preprocessing=view), tensors_of(), CARD)
    assert sorted(os.listdir(tmp_path / "b")) == ["README.md", "config.json", "manifest.json", "model.safetensors"]
    assert (tmp_path / "b/README.md").read_text(encoding="utf-8") == CARD
    config = json.loads((tmp_path / "b/config.json").read_bytes())
    fields = ["format", "vitral", "model", "task", "preprocessing", "classes", "activation", "source", "assumptions"]
    assert list(config) == fields
    assert (config["format"], config["vitral"], config["task"]) == (5, vitral.__version__, "classify")
    assert config["classes"] == ["cat", "dog", "Ünlü", "a|b"]
    assert config["preprocessing"]["normalize"]["mean"] == [0.485, 0.456, 0.406]
    assert config["model"]["image_size"] == [32, 48]


def test_half_precision_stays_half(tmp_path: Path) -> None:
    halves = {name: tensor.half() for name, tensor in tensors_of().items()}
    write_bundle(tmp_path / "b", bundle_of(), halves, CARD)
    assert identical({"": read_bundle(tmp_path / "b").tensors}, {"": halves})


def test_a_bundle_can_say_what_every_task_trains() -> None:
    trained = {task.trains for task in union_members(TaskConfig)}
    assert trained == set(Bundle.model_fields["task"].annotation.__args__)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model", "fields", "code", "values"),
    [
        (TINY, {"classes": ("cat", "dog")}, "config.conflict", ("classes", 4, 2)),
        (TINY, {"task": "masked_patches"}, "config.conflict", ("classes", 0, 4)),
        (small(head=NoHead()), {"task": "classify"}, "config.conflict", ("model.head",)),
        (
            TINY,
            {"preprocessing": Preprocessing(image_size=Size(32, 40), decoding=Decoding(channels=1))},
            "config.conflict",
            ("preprocessing.decoding.channels", 3, 1),
        ),
        (
            TINY,
            {"preprocessing": Preprocessing(image_size=Size(32, 50))},
            "config.indivisible",
            ("preprocessing.image_size", "32x50"),
        ),
        (
            small(any_size=False),
            {"preprocessing": Preprocessing(image_size=Size(32, 32))},
            "config.conflict",
            ("preprocessing.image_size", "32x32", "32x48"),
        ),
        (TINY, {"task": "guess"}, "config.unknown_name", ("task", "guess")),
    ],
)
def test_parts_that_do_not_fit_make_no_bundle(
    model: Vit, fields: dict[str, Any], code: str, values: tuple[object, ...]
) -> None:
    with raises(code, *values):
        bundle_of(model, **fields)


def test_an_image_of_another_size_is_welcome_where_the_model_resamples() -> None:
    assert bundle_of(preprocessing=Preprocessing(image_size=Size(64, 64))).preprocessing.image_size == (64, 64)


@pytest.mark.parametrize(("damage", "file", "code", "value"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_told_by_file_and_field(
    tmp_path: Path, damage: Callable[[Path], object], file: str, code: str, value: object
) -> None:
    write(tmp_path / "b")
    damage(tmp_path / "b")
    reseal(tmp_path / "b")
    with raises(code, value) as caught:
        read_bundle(tmp_path / "b")
    assert caught.value.where == str(tmp_path / "b" / file)


def test_a_newer_format_is_refused_with_what_to_install(tmp_path: Path) -> None:
    write(tmp_path / "b")
    rewrite(format=6, vitral="9.1.0", novelty={"x": 1})(tmp_path / "b")
    reseal(tmp_path / "b")
    with raises("weights.newer_version", 6, 5, "pip install 'vitral>=9.1.0'", vitral.__version__) as caught:
        read_bundle(tmp_path / "b")
    assert caught.value.where == f"{tmp_path}/b/config.json"


def test_a_bundle_of_the_first_format_is_read_for_ever() -> None:
    model, bundle = vitral.load(FIRST)
    assert (bundle.format, bundle.source, bundle.classes) == (5, "", ("ant", "bee"))
    ramp = torch.linspace(-1, 1, 3 * 16 * 16).view(1, 3, 16, 16)
    answer = torch.tensor([[0.12030007690191269, 0.0012932196259498596]])  # of the code that wrote it
    assert torch.allclose(model(ramp), answer, atol=1e-6)


MISFITS = {
    "missing": ({"norm.weight": None}, "weights.missing_tensor", ("norm.weight",)),
    "unexpected": ({"norm.wait": torch.ones(3)}, "weights.unexpected_tensor", ("norm.wait",)),
    "misshapen": ({"norm.weight": torch.ones(9)}, "weights.shape_mismatch", ("norm.weight", "(9,)", "(8,)")),
    "turned": (
        {"head.linear.weight": torch.ones(8, 4)},
        "weights.shape_mismatch",
        ("head.linear.weight", "(8, 4)", "(4, 8)"),
    ),
    "whole numbers": ({"norm.bias": torch.ones(8).long()}, "weights.wrong_type", ("norm.bias", "int64")),
    "several": ({"norm.weight": None, "norm.bias": None}, "weights.missing_tensor", ("norm.weight", "norm.bias")),
}


@pytest.mark.parametrize(("changes", "code", "values"), MISFITS.values(), ids=MISFITS)
def test_tensors_that_do_not_fit_are_neither_read_nor_written(
    tmp_path: Path, changes: dict[str, torch.Tensor | None], code: str, values: tuple[str, ...]
) -> None:
    from safetensors.torch import save_file

    write(tmp_path / "b")
    tensors = {name: tensor for name, tensor in (tensors_of() | changes).items() if tensor is not None}
    with raises(code, *values):
        write_bundle(tmp_path / "b", bundle_of(), tensors, CARD)
    assert seed_of(tmp_path / "b") == 0
    save_file(tensors, tmp_path / "b/model.safetensors")
    reseal(tmp_path / "b")
    with raises(code, *values) as caught:
        read_bundle(tmp_path / "b")
    assert caught.value.where == f"{tmp_path}/b/model.safetensors"


def test_nothing_has_the_final_name_before_all_of_it_is_flushed(tmp_path: Path) -> None:
    told: list[str] = []
    write(tmp_path / "b", disk=Storage(told.append))
    assert [step for step in told if not step.startswith("wrote")] == [
        *("made b.tmp-new", f"flushed {tmp_path.name}"),
        *("flushed model.safetensors", "flushed config.json", "flushed README.md"),
        *("flushed manifest.json", "flushed b.tmp-new"),
        *("renamed b.tmp-new to b", f"flushed {tmp_path.name}"),
    ]


def killed(stop: int, work: Callable[[Storage], None]) -> None:
    process = FORK.Process(target=until, args=(stop, kill, work))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def filled(stop: int, work: Callable[[Storage], None]) -> None:
    with raises("file.write_failed", WRITE_HINTS[errno.ENOSPC]):
        until(stop, fill, work)


@pytest.mark.parametrize("before", [None, 1])
@pytest.mark.parametrize("trouble", [killed, filled])
@pytest.mark.sampled(4)
def test_trouble_at_any_instant_leaves_the_old_or_the_new(
    tmp_path: Path, before: int | None, trouble: Callable[[int, Callable[[Storage], None]], None]
) -> None:
    told: list[str] = []
    for folder in ("start", "count"):
        (tmp_path / folder).mkdir()
        if before is not None:
            write(tmp_path / folder / "b", before)
    write(tmp_path / "count/b", 2, Storage(told.append))
    assert len(told) > 10
    seen = set()
    for stop in (number for number, done in enumerate(told) if number % 8 == 2 or not done.startswith("wrote")):
        home = tmp_path / str(stop)
        shutil.copytree(tmp_path / "start", home)
        trouble(stop, partial(write, home / "b", 2))
        seen.add(seed_of(home / "b"))
        write(home / "b", 3)
        assert seed_of(home / "b") == 3
        assert os.listdir(home) == ["b"]
    assert seen == {before, 2}


@pytest.mark.parametrize("name", ["photo.jpg", ".git", "best"])
@pytest.mark.parametrize("place", ["b", "b.tmp-new", "b.tmp-old"])
def test_a_folder_with_anything_else_in_it_is_never_replaced(tmp_path: Path, place: str, name: str) -> None:
    (tmp_path / place).mkdir()
    (tmp_path / place / name).touch()
    with raises("file.exists", tmp_path / place, name):
        write(tmp_path / "b")
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [place, f"{place}/{name}"]


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("precious")
    with raises("file.exists", tmp_path / "b"):
        write(tmp_path / "b")
    assert (tmp_path / "b").read_text() == "precious"


def test_a_bundle_can_be_read_from_within_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "b")
    monkeypatch.chdir(tmp_path / "b")
    assert seed_of(Path()) == 0


def test_a_missing_parent_is_told(tmp_path: Path) -> None:
    with raises("file.write_failed", tmp_path / "gone", WRITE_HINTS[errno.ENOENT]):
        write(tmp_path / "gone/b")


def _limited(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    with raises("file.write_failed", "ulimit -f") as caught:
        write(folder, 2)
    assert caught.value.where == f"{folder}.tmp-new/model.safetensors"


def test_a_limit_on_the_size_of_files_leaves_the_one_before(tmp_path: Path) -> None:
    write(tmp_path / "b", 1)
    process = FORK.Process(target=_limited, args=(tmp_path / "b",))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert seed_of(tmp_path / "b") == 1
    assert os.listdir(tmp_path) == ["b"]


def _unprivileged(folder: Path) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)  # root may write everywhere
    with raises("file.write_failed", "chmod u+rwX"):
        write(folder, 2)


def test_a_read_only_folder_leaves_the_one_before() -> None:
    with TemporaryDirectory() as root:  # where any user may look
        write(Path(root) / "b", 1)
        Path(root).chmod(0o555)
        process = FORK.Process(target=_unprivileged, args=(Path(root) / "b",))
        process.start()
        process.join()
        Path(root).chmod(0o755)
        assert process.exitcode == 0
        assert seed_of(Path(root) / "b") == 1


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_or_a_device_in_a_bundle_is_refused_at_once(name: str, tmp_path: Path) -> None:
    write(tmp_path / "best")
    (tmp_path / "best" / name).unlink()
    os.mkfifo(tmp_path / "best" / name)
    with raises("weights.not_a_file", tmp_path / "best" / name):
        read_bundle(tmp_path / "best")
    (tmp_path / "best" / name).unlink()
    (tmp_path / "best" / name).symlink_to("/dev/zero")
    with raises("weights.not_a_file", tmp_path / "best" / name):
        read_bundle(tmp_path / "best")
