"""Vitral in processes that are forked from one that has imported it: real output and exit codes, without the 2 s that
torch takes to be imported.

A test whose point is the start of a process, or what a shell does with it, starts Python itself.
"""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]

# For each line of stdin it forks a child with these words, folder and environment, and prints its exit code.
SERVER = """
import json, os, signal, sys

import torch
import vitral.cli, vitral.evaluation.results, vitral.explanation.page.page, vitral.explanation.walkthrough.describe
import vitral.runs.evaluate, vitral.runs.export, vitral.runs.train, vitral.weights.convert

for line in sys.stdin:
    words, code, cwd, environment, outputs = json.loads(line)
    child = os.fork()
    if not child:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for handle, path in enumerate(outputs, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), handle)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup and some shells have it ignored, and children inherit that
        sys.argv = ["-c" if code else "vitral", *words]
        if code:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        else:
            vitral.cli.main()
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _server() -> "subprocess.Popen[str]":
    """The process that forks, one for each process of the tests."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-P", "-c", SERVER]
    server = subprocess.Popen(line, stdin=-1, stdout=-1, text=True, cwd=ROOT, env=environment)
    atexit.register(_stop, server)
    return server


def _stop(server: "subprocess.Popen[str]") -> None:
    server.communicate()


def run_forked(
    *arguments: str, code: str = "", cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """`vitral ARGUMENTS`, or a program with these arguments, in a separate process; its stdin is empty."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        place, environment = str(cwd or Path.cwd()), dict(os.environ if env is None else env)
        server.stdin.write(json.dumps([arguments, code, place, environment, [*map(str, outputs)]]) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        out, err = (path.read_text(encoding="utf-8") for path in outputs)
    return subprocess.CompletedProcess(["vitral", *arguments], status, out, err)
