"""What runs inside the tree that is asked: one section, in its own process, from an empty folder.

It is started by `show` of tools/golden.py with the tree on PYTHONPATH, and with PYTHONSAFEPATH so that no file beside
this one hides a module. Only `tools` comes from the checkout that this file belongs to.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ("names", "options", "settings", "recipes", "models", "pixels", "training", "engines", "verbs")


def facts(section: str, work: Path, tree: Path) -> dict[str, Any]:
    """The facts of one section."""
    from tools.golden_facts import schema

    before = ROOT / "tests/fixtures/before"
    if section in {"names", "options", "settings", "recipes"}:
        found: dict[str, Any] = getattr(schema, section)()
        return found
    import torch

    torch.set_num_threads(1)
    from tools.golden_facts import engines, models, pixels, training, verbs

    match section:
        case "models":
            return models.models()
        case "pixels":
            return pixels.pixels(work)
        case "training":
            return training.training(work, before)
        case "engines":
            return engines.engines(before)
        case _:
            return verbs.verbs(work, before, tree)


def main(words: list[str]) -> None:
    import vitral  # of the tree: PYTHONPATH comes first

    sys.path.insert(0, str(ROOT))  # tools are those of this checkout
    importlib.import_module("tools.golden_facts")
    sys.path.remove(str(ROOT))  # processes that are started from here find vitral in the tree
    tree = Path(vitral.__file__).parents[1]
    if words[0] == "member":
        from tools.golden_facts.training import member

        member(words[1:])
    section, out = words
    found = facts(section, Path.cwd(), tree)
    Path(out).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
