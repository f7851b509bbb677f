"""Golden facts: what must stay the same while everything is renamed.

    python tools/golden.py                          the tree of BEFORE beside this one
    python tools/golden.py show TREE > facts.json   the facts of a tree, asked with its own environment
    python tools/golden.py compare OLD NEW          agreement by section; exit 1 where facts differ

Facts are asked by the names that BEFORE has, and translated by NAMES in tools/golden_facts/names.py for a tree that has
other names; EXPECTED there lists differences that are meant, each with its reason.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.golden_facts.compare import compare  # noqa: E402, found by the line above
from tools.golden_facts.names import BEFORE_VARIABLE  # noqa: E402
from tools.golden_facts.probe import SECTIONS  # noqa: E402

BEFORE = "e96fb6903289c458f7f13c9532494814628d9eac"  # the commit whose facts are the reference
PROBE = ROOT / "tools/golden_facts/probe.py"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}


def show(tree: Path, sections: Sequence[str], before: bool) -> dict[str, Any]:
    """The facts of a tree; `before` says that it has the old names."""
    found = {}
    for section in sections:
        started = time.monotonic()
        print(f"{tree.name}: {section}", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            found[section] = ask(tree.resolve(), section, Path(folder).resolve(), before)
        print(f"{tree.name}: {section}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return found


def ask(tree: Path, section: str, folder: Path, before: bool) -> dict[str, Any]:
    """One section, in a process of the tree's own environment that starts in an empty folder."""
    work = folder / "work"
    work.mkdir()
    home = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder)}
    place = {
        "PYTHONPATH": str(tree),
        "PYTHONSAFEPATH": "1",
        "PYTHONHASHSEED": "0",
        "NO_COLOR": "1",
        "COLUMNS": "120",
        "HF_HUB_OFFLINE": "1",
    }
    kept = {name: value for name, value in os.environ.items() if name not in {BEFORE_VARIABLE, "RANK", "WORLD_SIZE"}}
    environment = kept | ONE_THREAD | home | place | ({BEFORE_VARIABLE: "1"} if before else {})
    out = folder / "facts.json"
    command = [str(tree / ".venv/bin/python"), str(PROBE), section, str(out)]
    done = subprocess.run(command, cwd=work, env=environment, stdout=sys.stderr, check=False)
    if done.returncode:
        raise SystemExit(f"{tree}: {section} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def worktree(folder: Path) -> Path:
    """The tree of BEFORE with an environment of its own."""
    if not BEFORE:
        raise SystemExit("BEFORE names no commit yet: use show and compare")
    tree = folder / "before"
    subprocess.run(
        ["git", "-C", str(ROOT), "worktree", "add", "--detach", str(tree), BEFORE], check=True, stdout=sys.stderr
    )
    subprocess.run([sys.executable, "-m", "venv", str(tree / ".venv")], check=True)
    install = [str(tree / ".venv/bin/python"), "-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", ".[deploy]"]
    subprocess.run(install, cwd=tree, check=True, stdout=sys.stderr)
    return tree


def both(sections: Sequence[str]) -> int:
    """Show the tree of BEFORE and this one, and compare them."""
    with tempfile.TemporaryDirectory(prefix="golden-before-") as folder:
        try:
            old = show(worktree(Path(folder)), sections, before=True)
        finally:
            tree = str(Path(folder) / "before")
            subprocess.run(
                ["git", "-C", str(ROOT), "worktree", "remove", "--force", tree], check=False, stderr=subprocess.DEVNULL
            )
        return report(old, show(ROOT, sections, before=False))


def report(old: dict[str, Any], new: dict[str, Any]) -> int:
    lines, unexpected = compare(old, new)
    print("\n".join(lines))
    print(f"{unexpected:,} facts differ" if unexpected else "everything agrees")
    return int(unexpected > 0)


def read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section alone; may be repeated")
    verbs = parser.add_subparsers(dest="verb")
    shown = verbs.add_parser("show", help="print the facts of a tree as JSON")
    shown.add_argument("tree", type=Path)
    shown.add_argument("--before", action="store_true", help="the tree has the old names")
    shown.add_argument("--only", action="append", choices=SECTIONS, default=argparse.SUPPRESS)
    compared = verbs.add_parser("compare", help="compare two documents of facts")
    compared.add_argument("old")
    compared.add_argument("new")
    wanted = parser.parse_args()
    sections = wanted.only or SECTIONS
    if wanted.verb == "show":
        print(json.dumps(show(wanted.tree, sections, wanted.before), indent=1, sort_keys=True))
    elif wanted.verb == "compare":
        sys.exit(report(read(wanted.old), read(wanted.new)))
    else:
        sys.exit(both(sections))


if __name__ == "__main__":
    main()
