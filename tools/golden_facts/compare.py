"""Two documents of facts side by side."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from tools.golden_facts.names import EXPECTED, NAMES, best, translated_path, translated_value

Facts = dict[str, dict[str, Any]]
SHOWN = 20  # differences of a section that are printed
MISSING = "(missing)"


def in_new_names(facts: Facts) -> Facts:
    """The facts of the old tree as they would be if only names had changed."""
    rules: dict[str, Callable[[str, Any], tuple[str, Any]]] = {
        "names": lambda key, value: (NAMES["names"].get(key, key), value),
        "options": _option,
        "settings": _config,
        "recipes": _config,
        "verbs": _output,
    }
    return {
        section: dict(rules[section](key, value) if section in rules else (key, value) for key, value in table.items())
        for section, table in facts.items()
    }


def _option(key: str, value: Any) -> tuple[str, Any]:
    verb, _, option = key.partition(" | ")
    return f"{verb} | {NAMES['options'].get(f'{verb} {option}', NAMES['options'].get(option, option))}", value


def _config(key: str, value: Any) -> tuple[str, Any]:
    head, joint, path = key.rpartition(" | ")
    return head + joint + translated_path(path, NAMES["fields"], NAMES["kinds"]), _value(path, value)


def _output(key: str, value: Any) -> tuple[str, Any]:
    head, joint, path = key.rpartition(" | ")
    segments, made = path.split("."), []
    fields, kinds = NAMES["fields"], NAMES["kinds"]
    renamed = translated_path(path, fields, kinds).split(".") if fields or kinds else segments
    if len(renamed) != len(segments):  # a field went into another one
        return f"{head}{joint}{'.'.join(renamed)}", _value(path, value)
    for depth, segment in enumerate(segments, start=1):
        own = best(NAMES["outputs"], f"{head}.{'.'.join(segments[:depth])}")
        made.append(own or (renamed[depth - 1] if segment else segment))
    return f"{head}{joint}{'.'.join(made)}", _value(path, value)


def _value(path: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_value(path, each) for each in value]
    return translated_value(path, value, NAMES)


def compare(old: Facts, new: Facts, expected: Mapping[str, str] = EXPECTED) -> tuple[list[str], int]:
    """A report, and how many facts differ that are not expected to."""
    lines, unexpected = [], 0
    unused = set(expected)
    renamed = in_new_names(old)
    for section in dict.fromkeys([*renamed, *new]):
        ours, theirs = renamed.get(section, {}), new.get(section, {})
        keys = dict.fromkeys([*ours, *theirs])
        added = [key for key in theirs if key not in ours]  # since then: nothing to compare it with
        keys = {key: None for key in keys if key not in added}
        different = [key for key in keys if ours[key] != theirs.get(key, MISSING)]
        reasons: dict[str, int] = {}
        plain = []
        for key in different:
            pattern = next((each for each in expected if fnmatchcase(f"{section} | {key}", each)), None)
            if pattern is None:
                plain.append(key)
            else:
                unused.discard(pattern)
                reasons[expected[pattern]] = reasons.get(expected[pattern], 0) + 1
        agreed = len(keys) - len(different)
        lines.append(f"{section}: {agreed:,} of {len(keys):,} agree" + (f", {len(plain):,} differ" if plain else ""))
        lines += [f"  added since, {len(added):,}"] if added else []
        lines += [f"  expected, {count:,}: {reason}" for reason, count in reasons.items()]
        lines += [_difference(key, ours, theirs) for key in plain[:SHOWN]]
        lines += [f"  and {len(plain) - SHOWN:,} more"] if len(plain) > SHOWN else []
        unexpected += len(plain)
    lines += [f"EXPECTED names what no longer differs: {pattern}" for pattern in sorted(unused)]
    return lines, unexpected


def _difference(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return f"  {key}: {_brief(old.get(key, MISSING))} -> {_brief(new.get(key, MISSING))}"


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
