"""The verb predict in children of a process that has imported torch once, and the signals that end them."""

import json
import subprocess
import sys

# Forks children that run the verb, so that torch is imported once; each is sent a signal after so many seconds.
FORKING = """
import json, os, signal, sys, time
from vitral import cli
from vitral.inference import predictor  # once, for all children
from vitral.inference.engines.eager import EagerEngine

run = EagerEngine.run
def run_slowly(engine, pixels):
    time.sleep(0.05)
    return run(engine, pixels)
EagerEngine.run = run_slowly
signal.signal(signal.SIGINT, signal.default_int_handler)
for words, number, delay in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        cli.main(["predict", *words])
    time.sleep(delay)
    if number:
        os.kill(child, number)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def forked(attempts: list[tuple[list[str], int, float]]) -> list[int]:
    """The exit codes, or minus the signal that ended it, of each attempt."""
    words = [sys.executable, "-c", FORKING, json.dumps(attempts)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    assert "Traceback" not in done.stderr
    return [int(code) for code in done.stdout.split()]
