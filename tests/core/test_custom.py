"""Classes of users: in unions, in files, and refused unless they are trusted."""

import importlib.util
import py_compile
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from tests.errors import raises
from vitral.core.config import Config, OpenUnion, override, parse_settings
from vitral.core.custom import class_reference, copy_sources, find_class, is_reference, references, trusted, use_copies


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


def copied(folder: Path, reference: str) -> Path:
    """A folder with a copy of the file of the reference, as what is saved with it carries."""
    folder.mkdir()
    for name, content in copy_sources({"part": {"kind": reference}}).items():
        (folder / name).write_bytes(content)
    return folder


def test_the_classes_of_users_are_found_anywhere_in_plain_data() -> None:
    data = {"kind": "vit", "position": {"kind": "a.py:A"}, "parts": [{"kind": "b:B", "inner": {"kind": "c.py:C"}}]}
    assert list(references(data)) == ["a.py:A", "b:B", "c.py:C"]


def test_a_copy_is_used_where_the_file_is_gone_or_has_changed(reference: str, tmp_path: Path) -> None:
    original = Path(reference.rpartition(":")[0])
    folder = copied(tmp_path / "code", reference)
    original.write_text(FILE.replace("(4, 5)", "(40, 50)"), encoding="utf-8")
    with trusted(), use_copies(folder):
        changed = find_class(reference, Config)
    original.unlink()
    with use_copies(folder):
        gone = find_class(reference, Config)  # imported by now
    assert gone is changed
    assert part_of(hold(changed())).sides == (4, 5)


def test_copies_of_the_same_content_are_one_class_and_others_are_not(reference: str, tmp_path: Path) -> None:
    first, second = copied(tmp_path / "first", reference), copied(tmp_path / "second", reference)
    original = Path(reference.rpartition(":")[0])
    original.write_text(FILE.replace("(4, 5)", "(6, 7)"), encoding="utf-8")
    third = copied(tmp_path / "third", reference)
    original.unlink()
    found = []
    for folder in (first, second, third):
        with trusted(), use_copies(folder):
            found.append(find_class(reference, Config))
    assert found[0] is found[1]
    assert [part_of(hold(cls())).sides for cls in found] == [(4, 5), (4, 5), (6, 7)]


def test_a_copy_needs_trust_and_its_own_content(reference: str, tmp_path: Path) -> None:
    path = Path(reference.rpartition(":")[0])
    path.write_text(f"{FILE}# {tmp_path}", encoding="utf-8")  # imported by no other test
    folder = copied(tmp_path / "code", reference)
    with use_copies(folder), raises("config.untrusted", reference):
        find_class(reference, Config)
    (folder / path.name).write_text(FILE, encoding="utf-8")
    with trusted(), use_copies(folder), raises("config.not_importable", folder / path.name):
        find_class(reference, Config)


@pytest.mark.parametrize("text", ["{", "[]", '{"files": [{"path": "/a.py", "copy": "../b.py", "sha256": ""}]}'])
def test_a_bad_list_of_copies_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "sources.json").write_text(text, encoding="utf-8")
    with raises("config.not_importable", tmp_path / "sources.json"), use_copies(tmp_path):
        pass


def test_files_of_one_name_are_copied_under_two(reference: str, tmp_path: Path) -> None:
    other = tmp_path / "other/own_part.py"
    other.parent.mkdir()
    other.write_text(f"{FILE}\n", encoding="utf-8")
    files = copy_sources([{"kind": reference}, {"kind": f"{other}:FromFile"}, {"kind": "torch.nn:Module"}])
    assert len(files) == 3
    assert {FILE.encode(), f"{FILE}\n".encode()} < set(files.values())
    assert copy_sources({"kind": f"{tmp_path}/gone.py:A"}) == {}


def test_bytecode_beside_a_copy_is_never_run(reference: str, tmp_path: Path) -> None:
    folder = copied(tmp_path / "code", reference)
    original = Path(reference.rpartition(":")[0])
    (tmp_path / "evil.py").write_text(FILE.replace("(4, 5)", "(66, 66)"), encoding="utf-8")
    cache = importlib.util.cache_from_source(str(folder / original.name))
    py_compile.compile(
        str(tmp_path / "evil.py"), cache, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    original.unlink()
    for name in [name for name in sys.modules if name.startswith("vitral_copy_")]:
        del sys.modules[name]  # of the same content, from another test
    with trusted(), use_copies(folder):
        assert part_of(hold(find_class(reference, Config)())).sides == (4, 5)
