"""`python -m benchmarks.zoo`: every plain ViT of timm, transformers, vit-pytorch and torchvision, opened by ours.

Each model is built by its library, three layers deep, with random weights in which nothing is trivial; saved in the
library's way; opened by `vitral.load`; and its tokens and logits are compared in float64 at two sizes, one of them not
square. Ways: `hub` is the library's folder, `arch` a bare file of timm with its name given, `bare` the same without,
`settings` a bare file with what its tensors do not tell. Needs the Python of `make bench`.

  python -m benchmarks.zoo --only vit_base_patch16_224            one name, all ways
  python -m benchmarks.zoo --group vit --ways hub --json zoo.jsonl
  python -m benchmarks.zoo --json zoo.jsonl --resume               skips what was right
  python -m benchmarks.zoo --json zoo.jsonl --report               the table of what is there
"""

import argparse
import json
import logging
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import torch

from benchmarks.grid import Record, append_record, provenance, read_records
from benchmarks.zoo import huggingface_bare, huggingface_models, other_models, timm_models
from benchmarks.zoo.judge import Subject, judge
from benchmarks.zoo.report import failed, key_of, latest, markdown, report, worst_error

NAMES_A_WORKER = 20
Target = tuple[str, str]  # group and name
MODULES: dict[str, Any] = {
    group: module
    for module in (timm_models, huggingface_models, huggingface_bare, other_models)
    for group in module.GROUPS
}


def judge_target(group: str, name: str, ways: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A record for each way of one model."""
    base = {"group": group, "name": name}
    started = time.monotonic()
    with TemporaryDirectory(prefix="zoo-") as folder:
        try:
            subject: Subject = MODULES[group].make(group, name, Path(folder))
        except Exception as error:
            message = str(error).splitlines()[0][:300] if str(error) else ""
            failure = {"verdict": "not built", "code": type(error).__name__, "message": message}
            yield from (base | {"way": way} | failure | {"sizes": [], "seconds": 0.0} for way in ways)
            return
        built = round(time.monotonic() - started, 2)
        for way in ways:
            if way in subject.ways:
                yield base | {"way": way} | judge(way, subject) | {"build_seconds": built}


def work(targets: Sequence[str], ways: Sequence[str]) -> None:
    """The worker: a line of JSON for each cell, of targets such as `vit/vit_base_patch16_224`."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("vitral").propagate = False
    for target in targets:
        group, _, name = target.partition("/")
        for record in judge_target(group, name, [way for way in ways if way in MODULES[group].WAYS]):
            print("RECORD " + json.dumps(record), flush=True)
        print(f"DONE {target}", flush=True)


def run_worker(targets: Sequence[str], ways: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The lines of a worker, as kind and content; one that dies gives `DIED` and the end of what it said."""
    command = [sys.executable, "-m", "benchmarks.zoo", "--ways", ",".join(ways), "--worker", *targets]
    with TemporaryFile("w+", errors="replace") as said:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, errors="replace") as child:
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    kind, _, content = line.rstrip("\n").partition(" ")
                    if kind in ("RECORD", "DONE"):
                        yield kind, content
            finally:
                if child.poll() is None and sys.exc_info()[0] is not None:
                    child.terminate()
        if child.returncode in (-signal.SIGTERM, -signal.SIGINT):
            raise KeyboardInterrupt  # stopped from outside, which says nothing about the model
        if child.returncode:
            said.seek(0)
            yield "DIED", f"exit {child.returncode}: {said.read()[-300:].strip()}"


def run_all(targets: Sequence[str], ways: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The records of all targets, from worker after worker so that memory is freed."""
    waiting = list(targets)
    while waiting:
        batch = waiting[:NAMES_A_WORKER]
        for kind, content in run_worker(batch, ways):
            if kind == "RECORD":
                yield json.loads(content)
            elif kind == "DONE":
                waiting.remove(content)
            elif waiting and waiting[0] in batch:  # the one at hand when the worker died
                group, _, name = waiting.pop(0).partition("/")
                for way in [way for way in ways if way in MODULES[group].WAYS]:
                    found = {"verdict": "crashed", "code": "worker", "message": content, "sizes": [], "seconds": 0.0}
                    yield {"group": group, "name": name, "way": way} | found


def choose(groups: Sequence[str], only: str) -> list[Target]:
    patterns = only.split(",")
    return [
        (group, name)
        for group in groups
        for name in MODULES[group].names(group)
        if any(fnmatch(name, pattern) for pattern in patterns)
    ]


def show(record: Record, number: int, count: int) -> None:
    detail = worst_error(record) if record.get("errors") else f"{record.get('code')}: {record.get('message', '')[:100]}"
    line = f"[{number}/{count}] {record['group']} {record['name']} {record['way']}: {record['verdict']} ({detail})"
    print(line, file=sys.stderr, flush=True)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names that match: 'vit_*rope*,eva*'")
    parser.add_argument("--group", default=",".join(MODULES), help="groups, separated by commas (default: all)")
    parser.add_argument("--ways", default="hub,arch,bare,settings", help="ways, separated by commas (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a JSON line for each cell")
    parser.add_argument("--resume", action="store_true", help="skip cells that are right in the file")
    parser.add_argument("--report", action="store_true", help="print the table of the file and try nothing")
    parser.add_argument("--markdown", action="store_true", help="print the table of the docs instead")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    given = parse(words)
    ways = given.ways.split(",")
    if given.worker is not None:
        work(given.worker, ways)
        return 0
    records = read_records(given.json)
    if not given.report:
        right = {key_of(record) for record in latest(records) if given.resume and record["verdict"] == "right"}
        targets = [
            f"{group}/{name}"
            for group, name in choose(given.group.split(","), given.only)
            if not all((group, name, way) in right for way in ways if way in MODULES[group].WAYS)
        ]
        if not given.resume:
            records = []
        records += try_all(targets, ways, given.json)
    print("\n".join(markdown(latest(records))) if given.markdown else report(latest(records)))
    return 1 if failed(latest(records)) else 0


def try_all(targets: Sequence[str], ways: Sequence[str], file: Path | None) -> list[Record]:
    """Judge every target; each record is on the disk before the next begins, so that an interruption loses none."""
    found: list[Record] = []
    about, seen = provenance(), set()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for record in run_all(targets, ways):
            found.append(record | about)
            seen.add(f"{record['group']}/{record['name']}")
            show(record, len(seen), len(targets))
            if file:
                append_record(file, found[-1])
    except KeyboardInterrupt:
        print("interrupted: --resume continues", file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
