"""Names with control codes: what a terminal, a log and a page get of them."""

import json
import logging
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.data.pictures import color, encoded
from tests.processes import run_forked
from vitral.cli.terminal.text import PrintableFormatter, echo, error_lines
from vitral.html.page import printable_text

EVIL = "\x1b[31mred\x1b]0;title\x07\r\x08\u202egpj\x9b2J"


def controls(shown: str) -> set[str]:
    """The letters of a text that are neither printable nor a line break."""
    return {letter for letter in shown if not letter.isprintable()} - {"\n"}


def test_log_lines_and_errors_have_no_control_codes() -> None:
    record = logging.LogRecord("vitral", logging.INFO, "", 0, "%s\n\tof %s", (EVIL, "a\u2066b"), None)
    shown = PrintableFormatter("%(message)s").format(record)
    assert controls(shown) == {"\t"}
    assert "\\x1b[31mred" in shown
    lines = error_lines("data.x", f"{EVIL}\nerror[data.y]: forged\n  indented", f"{EVIL}\nhint: forged", EVIL)
    assert controls("".join(lines)) == set()
    assert [line.partition(":")[0] for line in lines] == ["error[data.x]", "where", "hint"]
    assert "\n" not in lines[1]
    assert lines[0].split("\n")[1:] == ["  error[data.y]: forged", "  indented"]
    assert printable_text("Ünlü 猫 🐈\n") == "Ünlü 猫 🐈\n"


def test_data_on_a_terminal_is_escaped_and_in_a_pipe_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.dumps({"name": EVIL}, ensure_ascii=False, indent=2)
    echo("a\u202eb\x07")
    assert capsys.readouterr().out == "a\u202eb\x07\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    echo(document)
    shown = capsys.readouterr().out
    assert controls(shown) == set()
    assert json.loads(shown) == {"name": EVIL}


def test_no_control_code_of_a_class_a_file_or_a_tensor_gets_out(tmp_path: Path) -> None:
    for label in (EVIL, "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "photos" / label / f"{number}.png").write_bytes(encoded(color(), "PNG"))
    (tmp_path / "photos/dog" / f"{EVIL}.jpg").write_bytes(b"no picture")
    save_file({EVIL: torch.zeros(2, 2)}, tmp_path / "weights.safetensors")
    for arguments in (
        ("check", "photos", "--html", "page.html"),
        ("convert", "weights.safetensors", "out", "--to", "vitral"),
        ("describe", f"{EVIL}.json"),
    ):
        done = run_forked(*arguments, cwd=tmp_path)
        assert done.returncode, arguments
        assert "red" in done.stdout + done.stderr, arguments
        assert controls(done.stdout + done.stderr) == set(), arguments
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert controls(page) <= {"\t"}
    assert "red" in page
