"""`python -m benchmarks.attack`: what is damaged is noticed, what is hostile costs nothing, what was begun is taken up.

Thousands of seeded cases: random faults in bundles, exports, packs and runs; images and containers that are cut,
flipped or made to hurt; pipes, devices and links; giants, which must open; and runs killed at random instants, set-up
included. A door holds if the answer is right or an error with a code, and if a hostile file takes at most 1 s of CPU
and 300 MB. Prints a table of tried, held and failed; the exit code is 1 if any failed.

  python -m benchmarks.attack                          all of it
  python -m benchmarks.attack --share 0.05 --kills 0   a short part
  python -m benchmarks.attack --only images --json attack.json
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.attack import artifacts, containers, giants, images, kills, places
from benchmarks.attack.case import Case, Result, run_cases
from vitral.core.machine import cpu_name

FAMILIES = ("artifacts", "images", "bombs", "containers", "places", "giants", "kills")


def cases_of(family: str, seed: int, share: float, home: Path) -> Iterator[Case]:
    if family == "artifacts":
        yield from artifacts.cases(seed, share, artifacts.make_artefacts(home))
    elif family == "images":
        images.predictor()
        yield from images.cases(seed, share)
    elif family == "bombs":
        images.predictor()
        yield from images.hostile()
    elif family == "containers":
        yield from containers.cases(seed, share)
    elif family == "places":
        yield from places.cases()
    elif family == "giants":
        for isolation in (None, giants.ISOLATED):
            giants.predictor(isolation)
        yield from giants.cases()


def attack(families: list[str], seed: int, share: float, count: int) -> Iterator[Result]:
    for family in families:
        with TemporaryDirectory(prefix=f"attack-{family}-") as folder:
            home = Path(folder)
            if family != "kills":
                warm_up = images.warm_up if family in {"images", "bombs"} else lambda: None
                yield from run_cases(cases_of(family, seed, share, home), warm_up)
            elif count:
                yield from kills.run_kills(artifacts.make_photos(home / "photos"), home, count, seed)


def table(results: list[Result]) -> str:
    tried = Counter(result.family for result in results)
    failed = Counter(result.family for result in results if result.fault)
    lines = [f"{'':<24} {'tried':>7} {'held':>7} {'failed':>7}"]
    for name, count in [*tried.items(), ("all", len(results))]:
        bad = failed.total() if name == "all" else failed[name]
        lines.append(f"{name:<24} {count:>7} {count - bad:>7} {bad:>7}")
    if killed := count_kills(results):
        lines.append(f"{killed} kills")
    return "\n".join(lines)


def count_kills(results: list[Result]) -> int:
    """How often the runs of the family `kills` were killed in all."""
    return sum(int(result.outcome) for result in results if result.outcome.isdecimal())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--only", action="append", choices=FAMILIES, help="families to run; all without it")
    parser.add_argument("--share", type=float, default=1.0, help="share of the random cases")
    parser.add_argument("--kills", type=int, default=300, help="number of kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the table, the faults and the machine to this file")
    asked = parser.parse_args()
    results = []
    for result in attack(asked.only or list(FAMILIES), asked.seed, asked.share, asked.kills):
        results.append(result)
        if result.fault:
            print(f"FAILED {result.family}: {result.name}: {result.fault} ({result.outcome})", flush=True)
        if len(results) % 100 == 0:
            print(f"{len(results)} cases", file=sys.stderr, flush=True)
    print(table(results))
    if asked.json:
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
        about = {"commit": commit.stdout.strip(), "machine": cpu_name(), "seed": asked.seed, "share": asked.share}
        faults = [result._asdict() for result in results if result.fault]
        costs = sorted((result.seconds, result.megabytes, result.family, result.name) for result in results)[-20:]
        tried = Counter(result.family for result in results)
        found = about | {"tried": tried, "kills": count_kills(results), "failed": faults, "dearest": costs}
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(any(result.fault for result in results))


if __name__ == "__main__":
    main()
