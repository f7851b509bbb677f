"""`python -m benchmarks.serving`: load on a real server, from this process, over loopback.

An S/16 at 224 with random weights, JPEG uploads of 500 x 375 pixels. Each scenario is a cell, a line of JSON in --out;
cells that are there are skipped, so that a run that was stopped goes on. All are bounded in clients and seconds.

  python -m benchmarks.serving --out serving.jsonl               all, an hour: the soak alone takes 30 minutes
  python -m benchmarks.serving --out serving.jsonl --seconds 20 --soak 120
  python -m benchmarks.serving --out serving.jsonl --only clients-32 --only overload
  python -m benchmarks.serving --out serving.jsonl --only peers --peers-python ../bench-venv/bin/python

offline      what the predictor reaches from files: the rate that the server is compared with
clients-N    closed loops of 1, 8, 32 and 128 clients
half         arrivals at half of the rate of 32 clients, evenly spaced, and at random
overload     arrivals at five times that rate, then a quiet client: refusals, accepted, memory, recovery
slow         8 clients, without and with 200 slow ones
soak         arrivals at 70 %: memory and open files
shutdown     SIGTERM with 50 requests in flight
reload       SIGHUP under load
workers      the memory of 1 and of 2 processes
peers        32 clients: ours, LitServe and Ray Serve, in turns, with the same engine and out of the box
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.serving import scenarios
from benchmarks.serving.load import photos
from benchmarks.serving.process import small_bundle

CLIENTS = (1, 8, 32, 128)


def read_cells(path: Path) -> dict[str, dict[str, Any]]:
    """The cells of an earlier run, by name."""
    if not path.exists():
        return {}
    return {cell["cell"]: cell for cell in map(json.loads, path.read_text().splitlines())}


def plan(given: argparse.Namespace, plain: scenarios.Setting) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    """The scenarios by name; each gets the cells before it."""
    found: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"offline": lambda _: scenarios.offline(plain)}
    for clients in CLIENTS:
        found[f"clients-{clients}"] = lambda _, clients=clients: scenarios.clients(plain, clients)  # type: ignore[misc]
    found |= {
        "half": lambda cells: scenarios.half(plain, rate_of(cells)),
        "overload": lambda cells: scenarios.overload(plain, rate_of(cells)),
        "slow": lambda _: scenarios.slow(plain),
        "shutdown": lambda _: scenarios.shutdown(plain),
        "reload": lambda _: scenarios.reload(plain),
        "workers": lambda _: scenarios.workers(plain),
        "peers": lambda _: scenarios.peers(plain, given.peers_python),
        "soak": lambda cells: scenarios.soak(plain, rate_of(cells), given.soak),
    }
    return found


def rate_of(cells: dict[str, Any]) -> float:
    """Images a second at 32 clients, which the arrivals of other scenarios are fractions of."""
    if "clients-32" not in cells:
        sys.exit("run clients-32 first: the rate of this scenario is a fraction of its rate")
    return float(cells["clients-32"]["rate"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="serving.jsonl", help="the file of the cells")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load")
    parser.add_argument("--soak", type=float, default=1800.0, help="seconds of the soak")
    parser.add_argument("--only", action="append", default=[], help="a scenario; repeatable")
    parser.add_argument("--engine", default="auto", help="of the server and of the predictor")
    parser.add_argument("--peers-python", default=sys.executable, help="a Python with litserve and ray[serve]")
    given = parser.parse_args()
    out = Path(given.out)
    cells = read_cells(out)
    with TemporaryDirectory(prefix="serving-") as folder:
        setting = scenarios.Setting(small_bundle(Path(folder) / "small"), photos(), given.seconds, given.engine)
        for name, scenario in plan(given, setting).items():
            if name in cells or (given.only and name not in given.only):
                continue
            start = time.monotonic()
            result = {"cell": name, **scenario(cells), "took": round(time.monotonic() - start, 1)}
            cells[name] = result
            with out.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
