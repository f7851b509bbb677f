"""`python -m benchmarks.inference [--cells S/16@8,B/16@1]`: ours against the best of the peers, cell by cell.

A cell is a model at a batch. All engines meet in a few rounds, and the leaders, three peers among them, once more with
nobody else on the machine: in many rounds, their processes started anew now and then, since each has its own luck with
memory. The ratios are of that final, round by round, and against whichever peer comes closest. A cell that is done is
added to a file of JSON lines, and one that is in the file, of this machine with these versions, is not measured again:
so it may be stopped and taken up at any time. Needs the Python of `make bench`.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import NamedTuple

from benchmarks.__main__ import say
from benchmarks.compare import Ratio, ratio
from benchmarks.peers import OTHER_PRECISION
from vitral.core.config import Config
from vitral.core.machine import cpu_count
from vitral.runs.bench import (
    BASELINE,
    BASELINE_FLOPS,
    OWN_WORKER,
    PEER_WORKER,
    Bench,
    BenchEngine,
    BenchPlan,
    Cell,
    Duration,
    Row,
    describe_machine,
    flops,
    format_bench,
    measure_cells,
    own_engines,
    peer_engines,
    summarize_cell,
)
from vitral.runs.folder import git_revision

MODELS, BATCHES = ("Ti/16", "S/16", "B/16"), (1, 8, 32)
# What a goal asks for: times the best float32 peer in each cell and over all cells, the share of peak, and int8.
AHEAD, MEAN, SHARE, INT8 = 1.0, 1.1, 0.8, 1.25
SLOW = ("vitral compiled",)  # to be made, and never the fastest here: only with --all
EVERYONE = Duration(rounds=3)
HEATS, TURN = 3, 1.0  # of a final, and the seconds of a turn in it
OWN, PEER = 2, 3  # how many of the float32 engines are in a final; of int8 the one that leads


class Place(NamedTuple):
    """A cell of the table."""

    model: str
    batch: int

    def __str__(self) -> str:
        return f"{self.model}@{self.batch}"


PLACES = tuple(Place(model, batch) for model in MODELS for batch in BATCHES)


class Match(Config):
    """How a cell was decided."""

    machine: str
    everyone: Cell
    final: Cell


def chosen(words: str) -> list[Place]:
    """The cells that `S/16@8,B/16` names: all of a model, or one."""
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    found = [place for place in PLACES if not wanted or str(place) in wanted or place.model in wanted]
    unknown = [word for word in wanted if word not in {*MODELS, *map(str, PLACES)}]
    if unknown:
        sys.exit(f"--cells: expected some of {', '.join(map(str, PLACES))}, got {unknown[0]!r}")
    return found


def read(file: Path, machine: str) -> dict[Place, Match]:
    """What was measured before on such a machine; of a cell that is there twice, the last."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    matches = [Match.from_json(line) for line in lines]
    return {Place(each.final.model, each.final.batch): each for each in matches if each.machine == machine}


def here(threads: int) -> str:
    """The machine, and the code that runs on it."""
    code = git_revision(Path(__file__).parent)
    return f"{describe_machine(threads)}, vitral at {code.commit[:9]}{' and changed' if code.dirty else ''}"


def measure(places: Sequence[Place], engines: Sequence[BenchEngine], length: Duration, file: Path) -> None:
    """Measure the cells and add each to the file."""
    threads = cpu_count()
    for model in dict.fromkeys(place.model for place in places):
        batches = [place.batch for place in places if place.model == model]
        for everyone in list(measure_cells(BenchPlan([model], batches, engines, threads, EVERYONE), log_progress)):
            final = decided(BenchPlan([model], [everyone.batch], finalists(everyone), threads, length))
            with file.open("a", encoding="utf-8") as out:
                match = Match(machine=here(threads), everyone=everyone, final=final)
                out.write(match.model_dump_json() + "\n")
            say("\n".join(verdict(final)))


def finalists(cell: Cell) -> list[BenchEngine]:
    """Those that led when everyone took part."""
    leading = [*leaders(floats(cell), OWN), *leaders(bytes_of(cell), 1), *leaders(rivals(cell), PEER)]
    return [BenchEngine(row.engine, OWN_WORKER if row.own else PEER_WORKER) for row in leading]


def decided(plan: BenchPlan) -> Cell:
    """The one cell of a final, over all of its heats; who fell in one of them has no part in it."""
    (model,), (batch,) = plan.models, plan.batches
    heats = [cell for _ in range(HEATS) for cell in measure_cells(plan, log_progress)]
    rows = [{row.engine: row for row in heat.rows} for heat in heats]
    seconds = {BenchEngine(BASELINE, OWN_WORKER): [BASELINE_FLOPS / heat.peak for heat in heats]}
    for each in plan.engines:
        if all(each.name in heat for heat in rows):
            seconds[each] = [second for heat in rows for second in heat[each.name].seconds]
    left_out = [reason for heat in heats for reason in heat.left_out]
    return summarize_cell(model, batch, flops(model), seconds, left_out)


@contextmanager
def log_progress(message: str, total: int) -> Iterator[Callable[[int], None]]:
    """A line for each eighth that is done."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if 8 * before // total != 8 * done // total:
            say(f"{message}: {100 * done // total}%")

    yield advance


def leaders(rows: Sequence[Row], count: int) -> list[Row]:
    """The fastest in the median round, the first before the second."""
    return sorted(rows, key=lambda row: -row.rate)[:count]


def rivals(cell: Cell) -> list[Row]:
    """The peers that the goals speak of: those that give float32 answers."""
    return [row for row in cell.rows if not row.own and row.engine not in OTHER_PRECISION]


class Lead(NamedTuple):
    """One of our engines, the peer that comes closest to it, and how many times as fast it is, round by round.

    A machine may be slower for a while, and for all alike: the speeds of the median round need not be of one time.
    """

    own: Row
    peer: Row
    times: Ratio


def lead(rows: Sequence[Row], peers: Sequence[Row]) -> Lead:
    """The lead of the best of our engines."""
    closest = [
        min((Lead(own, peer, ratio(own.seconds, peer.seconds)) for peer in peers), key=lambda each: each.times.median)
        for own in rows
    ]
    return max(closest, key=lambda each: each.times.median)


def verdict(cell: Cell) -> Iterator[str]:
    """Our fastest engine of float32 and of int8, each against the float32 peer that comes closest."""
    for message, goal, rows in (("float32", AHEAD, floats(cell)), ("int8", INT8, bytes_of(cell))):
        if rows and rivals(cell):
            own, peer, found = lead(rows, rivals(cell))
            met = "met" if found.median >= goal else "NOT met"
            note = (
                ", in speed; whether the answers hold is for an export of a trained model" if message == "int8" else ""
            )
            yield (
                f"{cell.model}@{cell.batch} {message}: {own.engine} {own.rate:.2f}/s is {found.median:.2f} x "
                f"{peer.engine} {peer.rate:.2f}/s ({found.low:.2f} to {found.high:.2f}); "
                f"{100 * own.share:.0f}% of the matmul peak; goal {goal:g} x: {met}{note}"
            )


def floats(cell: Cell) -> list[Row]:
    return [row for row in cell.rows if row.own and "int8" not in row.engine]


def bytes_of(cell: Cell) -> list[Row]:
    return [row for row in cell.rows if row.own and "int8" in row.engine]


def summary(cells: Sequence[Cell]) -> Iterator[str]:
    """All verdicts, and the goals that are about several cells."""
    full = [cell for cell in cells if rivals(cell)]
    for cell in full:
        yield from verdict(cell)
    leads = [lead(floats(cell), rivals(cell)).times.median for cell in full]
    if leads:
        mean = prod(leads) ** (1 / len(leads))
        met = "met" if mean >= MEAN else "NOT met"
        yield f"float32, geometric mean of {len(leads)} cells: {mean:.2f} x the best peer; goal {MEAN} x: {met}"
    for cell in cells:
        if cell.model in {"S/16", "B/16"} and cell.batch == 8 and floats(cell):
            share = max(row.share for row in floats(cell))
            met = "met" if share >= SHARE else "NOT met"
            yield f"{cell.model}@8: {100 * share:.0f}% of the matmul peak; goal {100 * SHARE:.0f}%: {met}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inference", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cells", default="", metavar="S/16@8,B/16", help="some of the cells; by itself all")
    parser.add_argument("--rounds", type=int, default=5, help=f"of each of the {HEATS} heats of a final, at the most")
    parser.add_argument("--minutes", type=float, default=30, help="for all finals; three rounds a heat at the least")
    parser.add_argument("--file", type=Path, default=Path("inference.jsonl"), help="where cells are kept")
    parser.add_argument("--again", action="store_true", help="measure cells that are in the file once more")
    parser.add_argument("--all", action="store_true", help="also engines that are slow to make, or give other answers")
    given = parser.parse_args(words)
    places = chosen(given.cells)
    threads = cpu_count()
    kept = {} if given.again else read(given.file, here(threads))
    open_ = [place for place in places if place not in kept]
    engines = [*(each for each in own_engines() if given.all or each.name not in SLOW), *peer_engines()]
    engines += [BenchEngine(name, PEER_WORKER) for name in OTHER_PRECISION] if given.all else []
    say(f"{len(open_)} of {len(places)} cells to measure, with {len(engines)} engines; kept in {given.file}")
    measure(open_, engines, Duration(given.rounds, TURN, 60 * given.minutes / len(PLACES) / HEATS), given.file)
    found = read(given.file, here(threads))
    matches = [found[place] for place in places]
    everyone, finals = (tuple(cells) for cells in zip(*((each.everyone, each.final) for each in matches), strict=True))
    for title, cells in (("everyone", everyone), ("the finals", finals)):
        print(f"{title}:\n{format_bench(Bench(machine=here(threads), threads=threads, cells=cells))}\n")
    print("\n".join(summary(finals)))


if __name__ == "__main__":
    main()
