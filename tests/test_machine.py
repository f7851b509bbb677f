"""The machine and the user's cache; the processors are held against the system in the tests of environments."""

from pathlib import Path

import pytest

from vitral.machine import cache_folder


def test_the_cache_is_where_the_user_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("engines") == tmp_path / "vitral" / "engines"
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_folder("engines") == tmp_path / "home" / ".cache" / "vitral" / "engines"
