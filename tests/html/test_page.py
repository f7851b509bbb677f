"""Pages: escaped, whole, and written so that nobody sees half of one."""

import json
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from vitral.html.page import printable, render, script_json


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ねこ/é 1.jpg", "ねこ/é 1.jpg"),
        ("a\nb", "a\\nb"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\udcff.jpg", "\\udcff.jpg"),
        ("gpj.\u202eexe", "gpj.\\u202eexe"),
    ],
)
def test_a_name_cannot_disturb_a_terminal_or_a_page(name: str, shown: str) -> None:
    assert printable(name) == shown


def template(folder: Path, text: str) -> Path:
    path = folder / "some.html"
    path.write_text(text)
    return path


def test_values_are_escaped_and_names_written_out(tmp_path: Path) -> None:
    path = template(tmp_path, "<p>{{ name }}|{{ name | printable }}</p>")
    assert render(path, name="<b>\n") == "<p>&lt;b&gt;\n|&lt;b&gt;\\n</p>"


def test_a_template_has_the_look_and_its_siblings(tmp_path: Path) -> None:
    (tmp_path / "part.html").write_text("{% macro bold(text) %}<b>{{ text }}</b>{% endmacro %}")
    path = template(tmp_path, '{% import "part.html" as part %}{{ part.bold("<") }}{% include "look.css" %}')
    text = render(path)
    assert text.startswith("<b>&lt;</b>:root {")
    assert "prefers-color-scheme: dark" in text


def test_a_value_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UndefinedError, match="name"):
        render(template(tmp_path, "{{ name }}"))


def test_nothing_in_the_json_ends_its_script() -> None:
    text = str(script_json({"name": "</script><!--<script>&\u2028"}))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": "</script><!--<script>&\u2028"}
