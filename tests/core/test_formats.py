"""Files of other versions, and what is said about them."""

import shlex

import pytest

from vitral.core.formats import install_hint


def test_the_version_in_a_file_becomes_part_of_a_command_only_if_it_is_one() -> None:
    for version in ("9", "9.1.0", "1.2.0rc1", "2.0.dev3"):
        assert shlex.split(install_hint(version, "1.0"))[:3] == ["pip", "install", f"vitral>={version}"]


@pytest.mark.parametrize("version", ["1'; rm -rf ~ #", "1.0\n", "$(id)", "", "1" * 100, "../x", None, 3, ["1"]])
def test_any_other_text_does_not(version: object) -> None:
    hint = install_hint(version, "1.0")
    assert "pip" not in hint
    assert hint == install_hint(None, "1.0")
