"""`python -m benchmarks.serving`: load on a real server, from this process, over loopback.

An S/16 at 224 with random weights, JPEG uploads of 500 x 375 pixels. Each scenario is a cell, a line of JSON in --out;
cells that are there are skipped, so that a run that was stopped goes on. All are bounded in clients and seconds. At the
end the table of docs/serving.md is printed.

  python -m benchmarks.serving --soak 420                        all, in half an hour
  python -m benchmarks.serving                                   the soak takes 30 minutes more
  python -m benchmarks.serving --only clients-32 --only overload
  python -m benchmarks.serving --table --write docs/serving.md   only the table, of the cells that there are
  python -m benchmarks.serving --out try.jsonl --rehearse        each cell for 5 s with a tiny model

offline      what the predictor reaches from files: the rate that the server is compared with
clients-N    closed loops of 1, 8, 32 and 128 clients
half         arrivals at half of the rate of 32 clients, evenly spaced, and at random
overload     arrivals at five times that rate, then a quiet client: refusals, accepted, memory, recovery
slow         8 clients, without and with 200 slow ones
peers-N      32 clients: ours, LitServe and Ray Serve, with the same engine and out of the box, all in one turn
shutdown     SIGTERM with 50 requests in flight
reload       SIGHUP under load
workers      the memory of 1 and of 2 processes
soak         arrivals at 70 %: memory and open files

The peers are in an environment of their own, that of `make bench`:
  .venv-bench/bin/pip install -c constraints.txt -r benchmarks/peers-serving.txt
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple

from benchmarks.serving import scenarios
from benchmarks.serving.load import photos
from benchmarks.serving.other_work import OtherWork
from benchmarks.serving.peers import peers
from benchmarks.serving.process import small_bundle, tiny_bundle
from benchmarks.serving.table import peer_cells, table, write_table

CLIENTS = (1, 8, 32, 128)
PEERS_PYTHON = Path(__file__).parents[2] / ".venv-bench/bin/python"
START = 15.0  # seconds, about, in which a server starts, warms up and stops
PATIENCE = 2.0  # times what a scenario takes, about, and a minute: then it is given up
REHEARSAL = {"seconds": 5.0, "soak": 10.0, "patience": 20.0, "model": "Ti/16 at 32"}
SETTING = "setting"

BUNDLES = {"S/16 at 224": small_bundle, "Ti/16 at 32": tiny_bundle}
Cells = dict[str, dict[str, Any]]


class Plan(NamedTuple):
    """A scenario, which gets the cells before it, and the seconds that it takes, about."""

    run: Callable[[Cells], dict[str, Any]]
    seconds: float


def read_cells(path: Path) -> Cells:
    """The cells of an earlier run, by name; the last of each. A line that was cut off when a run was killed is none."""
    found: Cells = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            cell = json.loads(line)
        except ValueError:
            continue
        found[cell["cell"]] = cell
    return found


def plan(given: argparse.Namespace, own: scenarios.Setting) -> dict[str, Plan]:
    """The scenarios by name, in order."""
    long = own.seconds

    def plain(scenario: Callable[..., dict[str, Any]], *more: Any) -> Callable[[Cells], dict[str, Any]]:
        return lambda _: scenario(own, *more)

    def rated(scenario: Callable[..., dict[str, Any]], *more: Any) -> Callable[[Cells], dict[str, Any]]:
        return lambda cells: scenario(own, rate_of(cells), *more)

    return {
        "offline": Plan(plain(scenarios.offline), long / 2 + 10),
        **{f"clients-{count}": Plan(plain(scenarios.clients, count), long + START) for count in CLIENTS},
        "half": Plan(rated(scenarios.half), 2.25 * long + START),
        "overload": Plan(rated(scenarios.overload), long + 10 + START),
        "slow": Plan(plain(scenarios.slow), 2 * long + START),
        **{
            name: Plan(plain(peers, given.peers_python, turn), 5 * (long / 2 + START))
            for turn, name in enumerate(peer_cells())
        },
        "shutdown": Plan(plain(scenarios.shutdown), START + 5),
        "reload": Plan(plain(scenarios.reload), long + START),
        "workers": Plan(plain(scenarios.workers), 2 * (long / 3 + START)),
        "soak": Plan(rated(scenarios.soak, given.soak), given.soak + START),
    }


def rate_of(cells: Cells) -> float:
    """Images a second at 32 clients, which the arrivals of other scenarios are fractions of."""
    if "clients-32" not in cells:
        raise RuntimeError("measure clients-32 first: the rate of this scenario is a fraction of its rate")
    return float(cells["clients-32"]["rate"])


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the `with` after so many seconds."""

    def give_up(number: int, frame: FrameType | None) -> None:  # what is open then closes its server
        raise TimeoutError(f"it took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def append(out: Path, cell: dict[str, Any]) -> None:
    """Write a cell; a line that was cut off before it stays alone."""
    text = out.read_text() if out.exists() else ""
    with out.open("a") as file:
        file.write(("\n" if text and not text.endswith("\n") else "") + json.dumps(cell) + "\n")


def choose_setting(given: argparse.Namespace, cells: Cells, bundle: Path) -> dict[str, Any]:
    """The cell of what all others share: that of the run that goes on, or a new one with an engine for all of them."""
    asked = {"model": given.model, "seconds": given.seconds, "asked": given.engine}
    if SETTING not in cells:
        return {"cell": SETTING, **asked, "engine": scenarios.choose_engine(bundle, given.engine)}
    before = {name: cells[SETTING][name] for name in asked}
    if before != asked:
        sys.exit(f"{given.out} was measured with {before}, and not with {asked}; choose another --out")
    return cells[SETTING]


def measure(given: argparse.Namespace, cells: Cells) -> list[str]:
    """Measure the cells that are missing; the names of those that failed."""
    out, failed = Path(given.out), []
    with TemporaryDirectory(prefix="serving-") as folder:
        bundle = BUNDLES[given.model](Path(folder) / "small")
        cells[SETTING] = shared = choose_setting(given, cells, bundle)
        if SETTING not in read_cells(out):
            append(out, shared)
        own = scenarios.Setting(bundle, photos(), given.seconds, shared["engine"])
        plans = plan(given, own)
        if unknown := set(given.only) - set(plans):
            sys.exit(f"expected scenarios of {', '.join(plans)}; got {', '.join(unknown)}")
        todo = {
            name: each
            for name, each in plans.items()
            if (not given.only or name in given.only) and (given.again or name not in cells)
        }
        for number, (name, each) in enumerate(todo.items(), 1):
            left = sum(later.seconds for later in list(todo.values())[number - 1 :])
            print(f"{number}/{len(todo)} {name}: about {each.seconds:.0f} s of {left / 60:.0f} min", flush=True)
            start = time.monotonic()
            try:
                with OtherWork() as others, time_limit(given.patience * each.seconds + 60):
                    result = each.run(cells)
            except Exception as error:  # the other cells do not depend on it, and it is measured again next time
                failed.append(name)
                print(f"  FAILED: {type(error).__name__}: {error}", flush=True)
                continue
            took = round(time.monotonic() - start, 1)
            cells[name] = {"cell": name, **result, "took": took, "others": round(others.share, 4)}
            append(out, cells[name])
            print(f"  took {took:.0f} s, other work {others.share:.1%}: {json.dumps(result)[:400]}", flush=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="serving.jsonl", help="the file of the cells")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load")
    parser.add_argument("--soak", type=float, default=1800.0, help="seconds of the soak")
    parser.add_argument("--rehearse", action="store_true", help="5 s, a tiny model, and patience with a busy machine")
    parser.add_argument("--only", action="append", default=[], help="a scenario; repeatable")
    parser.add_argument("--again", action="store_true", help="measure cells again that are there")
    parser.add_argument("--engine", default="auto", help="of the server and of the predictor")
    parser.add_argument("--peers-python", default=str(PEERS_PYTHON), help="a Python with litserve and ray[serve]")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--write", default="", help="a document whose table is replaced, such as docs/serving.md")
    parser.set_defaults(patience=PATIENCE, model="S/16 at 224")
    given = parser.parse_args()
    if given.rehearse:
        vars(given).update(REHEARSAL)
    cells = read_cells(Path(given.out))
    if given.write and (given.rehearse or cells.get(SETTING, {}).get("model") == REHEARSAL["model"]):
        sys.exit("a rehearsal has no figures for a document")
    failed = [] if given.table else measure(given, cells)
    print("\n" + table(cells))
    if given.write:
        write_table(Path(given.write), cells)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the same command measures them again")


if __name__ == "__main__":
    main()
