"""What grids of measurements share: records as lines of JSON, where they were made, and their mean over seeds."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vitral.core.machine import cpu_name

Record = Mapping[str, Any]  # a cell, what it found, and where
EMPTY = "-"
LIBRARIES = ("torch", "timm", "transformers", "vit-pytorch", "lightly")


def read_records(path: Path | None) -> list[Record]:
    """The records of a file of JSON lines; an unfinished last line is left out."""
    if path is None or not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n") and line.strip()]


def append_record(path: Path, record: Record) -> None:
    """Add a line to a file of records."""
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(record) + "\n")


def provenance() -> dict[str, Any]:
    """The commit of ours, the machine, and the versions of the libraries that are installed."""
    commit = subprocess.run(["git", "describe", "--always"], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "vitral"], check=False).returncode
    versions = {name: found for name in LIBRARIES if (found := _version(name))}
    return {"commit": commit.stdout.strip() + changed * "-dirty", "machine": cpu_name(), "versions": versions}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def spread(values: Sequence[float], seeds: int) -> str:
    """The mean of the seeds in percent, its standard deviation, and how many were run if not all."""
    if not values:
        return EMPTY
    percents = [100 * value for value in values]
    text = f"{mean(percents):.2f}" + (f" ± {stdev(percents):.2f}" if len(percents) > 1 else "")
    return text if len(percents) == seeds else f"{text} ({len(percents)} of {seeds} seeds)"
