"""Classes of users: in unions, in files, and refused unless they are trusted."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from tests.errors import raises
from vitral.core.config import Config, OpenUnion, override, parse_settings
from vitral.core.custom import class_reference, find_class, is_reference, trusted


class Small(Config):
    kind: Literal["small"] = "small"
    size: int = 1

    def build(self) -> int:
        return self.size


class Large(Config):
    kind: Literal["large"] = "large"
    factor: float = 2.0

    def build(self) -> int:
        return 10


class Holder(Config):
    part: Annotated[Small | Large, OpenUnion()] = Small()
    parts: tuple[Annotated[Small | Large, OpenUnion()], ...] = ()
    name: str = ""


class Own(Config):
    sides: tuple[int, int] = (2, 3)

    def build(self) -> int:
        return self.sides[0] * self.sides[1]


class Incomplete(Config):
    sides: int = 2


def hold(part: Any, parts: Any = ()) -> Holder:
    return Holder(part=part, parts=parts)


def part_of(holder: Holder) -> Any:
    return holder.part


FILE = """
from vitral.core.config import Config

print("imported")

class FromFile(Config):
    sides: tuple[int, int] = (4, 5)

    def build(self) -> int:
        return self.sides[0]
"""


@pytest.fixture
def reference(tmp_path: Path) -> str:
    path = tmp_path / "own_part.py"
    path.write_text(FILE, encoding="utf-8")
    return f"{path}:FromFile"


def test_an_object_of_a_users_class_returns_from_json() -> None:
    holder = hold(Own(sides=(6, 7)), (Small(), Own()))
    again = Holder.from_json(holder.to_json())
    assert again == holder
    assert isinstance(part_of(again), Own)


def test_a_setting_by_path_changes_a_users_object() -> None:
    assert part_of(override(hold(Own()), {"part.sides": (8, 9)})) == Own(sides=(8, 9))
    assert part_of(override(Holder(), {"part": Own(sides=(1, 1))})) == Own(sides=(1, 1))
    assert override(hold(Own()), {"part": "large"}).part == Large()


def test_a_path_that_is_given_again_replaces_what_was_below_it() -> None:
    settings = parse_settings(["part=small", "part.size=3", "name=a", "part=large", "part.factor=4"])
    assert list(settings) == ["name", "part", "part.factor"]
    assert override(Holder(), settings) == Holder(part=Large(factor=4.0), name="a")


def test_members_are_told_apart_by_kind_as_before() -> None:
    assert Holder.parse({"part": {"kind": "large", "factor": 3.0}}).part == Large(factor=3.0)
    with raises("config.unknown_name", "part", "medium"):
        Holder.parse({"part": {"kind": "medium"}})


def test_a_class_without_the_methods_of_the_union_is_refused() -> None:
    with raises("config.wrong_class", "Incomplete", "build"):
        hold(Incomplete())


def test_the_end_of_a_path_suffices_where_it_is_unique() -> None:
    assert override(Holder(), {"size": 5}).part == Small(size=5)
    with raises("config.unknown_field", "siez"):
        override(Holder(), {"siez": 5})

    class Two(Config):
        left: Small = Small()
        right: Small = Small()

    with raises("config.ambiguous_setting", "left.size", "right.size"):
        override(Two(), {"size": 5})


def test_code_of_a_user_runs_only_if_it_is_trusted(reference: str, capsys: pytest.CaptureFixture[str]) -> None:
    with raises("config.untrusted", reference):
        override(Holder(), {"part": reference})
    assert "imported" not in capsys.readouterr().out
    with trusted():
        holder = override(Holder(), parse_settings([f"part={reference}", "part.sides=[5, 6]"]))
    assert holder.part.build() == 5
    assert "imported" in capsys.readouterr().out
    assert Holder.from_json(holder.to_json()) == holder  # imported by now, so nothing is to be trusted


def test_trust_ends_with_its_context(reference: str) -> None:
    with trusted(), trusted(False):
        find_class(reference, Config)
    with raises("config.untrusted"):
        find_class(reference.replace("FromFile", "Other"), Config)


@pytest.mark.parametrize("name", ["{path}:Missing", "{path}:print", "/no/such/file.py:X", "no_such_module_at_all:X"])
def test_what_cannot_be_imported_is_named(name: str, reference: str) -> None:
    given = name.format(path=reference.rpartition(":")[0])
    with trusted(), raises("config.not_importable"):
        find_class(given, Config)


def test_a_file_that_moved_is_found_once_its_class_is_imported(reference: str, tmp_path: Path) -> None:
    moved = f"{tmp_path / 'gone' / 'own_part.py'}:FromFile"
    with trusted():
        known = find_class(reference, Config)
    assert find_class(moved, Config) is known
    with raises("config.untrusted"):
        find_class(moved.replace("own_part", "other_part"), Config)


def test_a_file_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise RuntimeError('at import')", encoding="utf-8")
    before = set(sys.modules)
    for _ in range(2):
        with trusted(), pytest.raises(RuntimeError, match="at import"):
            find_class(f"{path}:X", Config)
    assert set(sys.modules) == before


def test_hub_ids_and_addresses_are_no_references() -> None:
    assert is_reference("./parts.py:Own")
    assert is_reference("package.module:Own")
    assert not any(map(is_reference, ["hf:facebook/dinov2-small", "s3://bucket/x", "rope2d", 3, None]))


def test_a_class_of_a_script_is_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    text = "from vitral.core.custom import class_reference\nclass A: pass\nprint(class_reference(A))"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{path}:A"
    assert class_reference(Own) == f"{__name__}:Own"
