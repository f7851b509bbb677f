"""The command line as its users meet it: real processes, real pipes, a real terminal."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from tests.processes import run_forked
from tests.weights.bundles import bundle_of, tensors_of
from vitral import __version__, cli
from vitral.cli.terminal.help import VERBS as REGISTERED
from vitral.weights.bundle import write_bundle

APP = import_module("vitral.cli.terminal.app")  # vitral.cli.terminal.app is the Typer object
VERBS = list(REGISTERED)

# The real program with verbs that fail in every way there is.
FAILING = """
import logging, os, signal, time
from importlib import import_module
from vitral import cli
from vitral.core import errors
verb = import_module("vitral.cli.terminal.app").verb

# Whoever started the tests in the background may have had interrupts ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

@verb()
def spoil():
    raise errors.DataError("12 KB", code="data.truncated_image", where="photos/cat/07.jpg", hint="remove it")

@verb()
def mistake():
    raise errors.ConfigError("not 'alibi'", code="config.unknown_name")

@verb()
def crash():
    raise KeyError("nobody foresaw this")

@verb()
def grow(library: str):
    if library == "numpy":
        import numpy
        numpy.empty(10**17, numpy.uint8)  # more than any address has room for
    else:
        import torch
        torch.empty(10**17, dtype=torch.uint8)

@verb()
def talk():
    logging.getLogger("vitral.train").info("step 1 of 2")
    print("data")

@verb()
def wait():
    print("waiting", flush=True)
    time.sleep(60)

@verb()
def flood():
    for _ in range(100000):
        print("a line of data")

@verb()
def words(words: list[str]):
    print(words)

cli.main()
"""


def command(arguments: Sequence[str], failing: bool = False) -> list[str]:
    return [sys.executable, *(["-c", FAILING] if failing else ["-m", "vitral"]), *arguments]


def run(*arguments: str, failing: bool = False) -> subprocess.CompletedProcess[str]:
    return run_forked(*arguments, code=FAILING if failing else "")


def test_version_goes_to_stdout() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"vitral {__version__}\n", "")


def test_help_lists_every_verb() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert VERBS
    assert all(f"  {verb}  " in done.stdout for verb in VERBS)


# Asks for the help of every verb in a fork of one process, and prints which modules it has imported: in 1.6 s of CPU on
# an AMD EPYC, where as many starts of Python take 2.7 s.
HELPED = """
import os, sys
import vitral.cli
for verb in ["", *sys.argv[1:]]:
    child = os.fork()
    if not child:
        sys.argv = ["vitral", *filter(None, [verb]), "--help"]
        try:
            vitral.cli.main()
        except SystemExit as end:
            print("ended", end.code or 0, "of", *sys.modules, file=sys.stderr, flush=True)
            os._exit(0)
    os.waitpid(child, 0)
"""


def test_help_does_not_wait_for_torch() -> None:
    line = [sys.executable, "-c", HELPED, *VERBS]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    found = [line.split() for line in done.stderr.splitlines()]
    assert len(found) == 1 + len(VERBS)
    for words in found:
        assert words[:3] == ["ended", "0", "of"]
        assert "vitral.cli" in words
        assert not {*words} & {"torch", "numpy", "matplotlib", "pydantic", "json"}


def test_importing_vitral_does_not_wait_for_torch() -> None:
    script = "import sys, vitral; vitral.ConfigError; dir(vitral); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_no_verb_shows_the_help_and_is_a_mistake() -> None:
    done = run()
    assert done.returncode == 2
    assert "Prepare data:" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["descibe", "B/16"], "'describe'"),
        (["describe", "B/16", "--imag", "384"], "--image-size"),
        (["--quit"], "--quiet"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(arguments: list[str], nearest: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert nearest in done.stderr
    assert done.stdout == ""


def test_an_error_is_three_lines_on_stderr_and_its_exit_code() -> None:
    done = run("spoil", failing=True)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error[data.truncated_image]: 12 KB",
        "where: photos/cat/07.jpg",
        "hint: remove it",
    ]


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["bench", "--models", "nosuch"], "--models"),
        (["train", "sample", "--model=nosuch"], "--model"),
        (["train", "sample", "--image-size", "abc"], "--image-size"),
        (["train", "sample", "--set", "image_size=abc"], "model.image_size"),
        (["describe", "nosuch"], "model"),
    ],
)
def test_an_error_names_the_option_that_was_given(
    arguments: list[str], place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert f"where: {place}" in capsys.readouterr().err.splitlines()


def test_an_error_without_place_and_remedy_is_one_line() -> None:
    done = run("mistake", failing=True)
    assert (done.returncode, done.stderr) == (2, "error[config.unknown_name]: not 'alibi'\n")


def test_an_error_nobody_foresaw_asks_for_a_report() -> None:
    done = run("crash", failing=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error[internal.unexpected]: KeyError: 'nobody foresaw this'\nwhere: <string>:")
    assert "--debug" in done.stderr


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_too_little_memory_is_told_with_what_takes_less(library: str) -> None:
    done = run("grow", library, failing=True)
    assert done.returncode == 1
    first, hint = done.stderr.splitlines()
    assert first.startswith("error[machine.out_of_memory]: ")
    assert all(option in hint for option in ("--batch-size", "--image-size"))


@pytest.mark.parametrize("arguments", [["describe", "~nosuchuser/x"], ["convert", "~nosuchuser/x", "~/out"]])
def test_a_home_that_there_is_not_is_a_mistake_in_the_path(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (3, "")
    first, where, _ = done.stderr.splitlines()
    assert first.startswith("error[config.not_found]: ")
    assert where == "where: ~nosuchuser/x"


@pytest.mark.parametrize("arguments", [["--debug", "spoil"], ["spoil", "--debug"]], ids=" ".join)
def test_debug_before_or_after_the_verb_shows_the_traceback(arguments: list[str]) -> None:
    done = run(*arguments, failing=True)
    assert done.returncode == 3
    assert done.stderr.startswith("Traceback")
    assert "DataError: photos/cat/07.jpg: 12 KB; remove it" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "talk"), [(["talk"], "step 1 of 2\n"), (["--quiet", "talk"], ""), (["talk", "--quiet"], "")]
)
def test_quiet_silences_the_talk_and_keeps_the_data(arguments: list[str], talk: str) -> None:
    done = run(*arguments, failing=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "data\n", talk)


def test_what_follows_two_dashes_is_left_alone() -> None:
    assert run("words", "--quiet", "--", "--debug", failing=True).stdout == "['--debug']\n"


def test_an_interrupted_verb_leaves_with_130_and_no_traceback() -> None:
    with subprocess.Popen(command(["wait"], failing=True), stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in talk


@pytest.mark.parametrize("verb", ["flood", "talk"])  # found while the verb writes, and at the end
def test_a_reader_that_went_away_is_no_reason_to_complain(verb: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    line = command([verb, "--quiet"], failing=True)
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # so that a short answer is written only at the end
    done = subprocess.run(line, stdout=writer, stderr=-1, text=True, env=buffered, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")  # as of a program that SIGPIPE ends


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("verb", "code"), [("talk", 0), ("mistake", 2), ("spoil", 3), ("crash", 1)])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_change_no_exit_code(verb: str, code: int, closed: str) -> None:
    line = ["sh", "-c", f'"$@" {closed}', "sh", *command([verb], failing=True)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stdout == ("data\n" if verb == "talk" and closed == "2>&-" else "")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arguments", [["descibe", "B/16"], ["describe", "nope"], ["describe", "nope", "--debug"]])
def test_without_stderr_the_talk_does_not_go_to_stdout(arguments: list[str]) -> None:
    line = ["sh", "-c", '"$@" 2>&-', "sh", *command(arguments)]
    done = subprocess.run(line, stdout=-1, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("color", [True, False])
def test_a_terminal_gets_color_unless_no_color_is_set(color: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "" if color else "1"}
    line = command(["spoil"], failing=True)
    done = subprocess.run(line, stderr=theirs, env=environment, timeout=60, check=False)
    os.close(theirs)
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert done.returncode == 3
    assert "error[data.truncated_image]: 12 KB" in shown
    assert ("\x1b[" in shown) == color


def test_describe_answers_an_unknown_model_with_the_nearest_name() -> None:
    done = run("describe", "B16")
    assert (done.returncode, done.stdout) == (2, "")
    first, *_, hint = done.stderr.splitlines()
    assert first.startswith("error[config.unknown_name]: ")
    assert "'B16'" in first
    assert "B/16, " in hint


@pytest.mark.parametrize("name", ["runs/missing", "./nowhere", "Q/16"])
def test_describe_tells_that_what_may_be_a_path_is_none(name: str) -> None:
    done = run("describe", name)
    assert (done.returncode, done.stdout) == (2, "")
    first, *_, hint = done.stderr.splitlines()
    assert first.startswith("error[config.unknown_name]: ")
    assert f"'{name}'" in first
    assert "file or folder" in hint
    assert "B/16" in hint


def test_describe_tells_of_a_file_that_is_not_there() -> None:
    done = run("describe", "nosuch.safetensors")
    assert done.returncode == 3
    assert done.stderr.startswith("error[weights.not_found]: ")
    assert "where: nosuch.safetensors" in done.stderr


def test_describe_answers_a_mistyped_setting_with_the_nearest_field() -> None:
    done = run("describe", "B/16", "--set", "widht=64")
    assert (done.returncode, done.stdout) == (2, "")
    first, where, hint = done.stderr.splitlines()
    assert first.startswith("error[config.unknown_field]: ")
    assert where == "where: widht"
    assert "'width'" in hint


def test_describe_takes_weights_too(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", bundle_of(), tensors_of(), "")
    assert json.loads(run("describe", str(tmp_path / "b"), "--json").stdout)["image"] == [32, 48]


def test_describe_prints_text_or_json() -> None:
    small = ("--set", "depth=1", "--image-size", "32")
    assert "32 x 32" in run("describe", "Ti/16", *small).stdout
    assert json.loads(run("describe", "Ti/16", *small, "--json").stdout)["image"] == [32, 32]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("notebook", [True, False])
def test_a_notebook_gets_no_control_sequences(notebook: bool, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-color"} | ({"JPY_PARENT_PID": "1"} if notebook else {})
    line = command(["pack", "sample", str(tmp_path / "shards")])
    with subprocess.Popen(line, stdout=theirs, stderr=theirs, env=environment) as done:
        os.close(theirs)
        pieces = []
        with suppress(OSError):  # the end of a terminal that nobody writes to
            while piece := os.read(ours, 65536):
                pieces.append(piece)
    os.close(ours)
    shown = b"".join(pieces).decode()
    assert done.returncode == 0
    assert "6,000 images" in shown
    assert ("\x1b[" in shown) == (not notebook)


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(APP, "LINE_SECONDS", 0.0)
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    caplog.set_level("INFO", "vitral")
    with APP.progress_bar("explaining", 1200) as advance:
        advance(1000)
        advance(200)
    assert caplog.messages == ["explaining: 1,000 of 1,200"]
