"""The rules that keep vitral in order, and proof that each rule finds its breach."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath

import pytest

import vitral

ROOT = Path(__file__).parent.parent
FOLDERS = ("vitral", "tests", "benchmarks", "tools")

# A module imports only from lines below its own; names on one line do not import each other.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("serving", "experiments", "lessons"),
    ("runs",),
    ("recipes",),
    ("exporters",),
    ("training", "evaluation", "explanation", "inference"),
    ("weights",),
    ("tasks",),
    ("models", "data"),
    ("html",),
    ("core",),
)
HEIGHT = {name: -line for line, names in enumerate(LAYERS) for name in names}
FACADE = "vitral/__init__.py"  # imports its names lazily, from any line
PICKLES = "vitral/weights/tensors.py"  # the only file that opens pickles of torch, and takes only weights out
DURABLE = {"vitral/core/storage.py", "vitral/core/jsonl.py"}
NEVER_IMPORTED = {"pickle", "timm", "torchvision", "transformers", "vit_pytorch"}
ORACLES = "vitral/weights/oracles/"  # the only modules that import other libraries, in a process of their own
VAGUE_NAMES = ("utils.py", "helpers.py", "common.py", "misc.py", "new_*.py", "legacy_*.py")
MOST_LINES = 500
MOST_FILES = 15
WHOLE_PACKAGE_TESTS = (
    "tests/explanation/test_browser.py",
    "tests/models/test_references.py",
    "tests/test_ablation.py",
    "tests/test_architecture.py",
    "tests/test_attack.py",
    "tests/test_before.py",
    "tests/test_custom_parts.py",
    "tests/test_deploy.py",
    "tests/test_docs.py",
    "tests/test_errata.py",
    "tests/test_fuzz.py",
    "tests/test_layouts.py",
    "tests/test_learning.py",
    "tests/test_packaging.py",
    "tests/test_selfsupervision.py",
    "tests/test_zoo.py",
)


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a file, which several rules look at."""
    return ast.parse(source)


@cache
def nodes(source: str) -> list[ast.AST]:
    """Every node of that tree."""
    return list(ast.walk(parsed(source)))


def imports(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything a file imports, wherever in it; `from a import b` gives `a.b`."""
    package = PurePosixPath(path).parent.parts
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            parts = (*above, *([node.module] if node.module else []))
            yield from ((node.lineno, ".".join([*parts, alias.name])) for alias in node.names)


def unit(path: str) -> str:
    """The name in LAYERS that a file of vitral belongs to."""
    return PurePosixPath(path).parts[1].removesuffix(".py")


def layer_breaches(path: str, source: str) -> list[str]:
    """Imports of vitral that go up, sideways or through the facade."""
    home = unit(path)
    if path == FACADE:
        return []
    if home not in HEIGHT:
        return [f"{path}: {home} is on no line of LAYERS"]
    found = []
    for line, name in imports(path, source):
        first, *rest = name.split(".")
        if first != "vitral" or rest == ["__version__"]:
            continue
        target = rest[0] if rest else ""
        if target not in HEIGHT:
            found.append(f"{path}:{line}: import from where it is defined, not {name}")
        elif target != home and HEIGHT[target] >= HEIGHT[home]:
            found.append(f"{path}:{line}: {home} may not import {target}")
    return found


def unsafe_breaches(path: str, source: str) -> list[str]:
    """Packages that vitral does without, and reading a file as code."""
    found = [
        f"{path}:{line}: {name} is not to be used"
        for line, name in imports(path, source)
        if name.split(".")[0] in NEVER_IMPORTED or name == "torch.load"
    ]
    tree = nodes(source)
    for node in tree:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            name = ast.unparse(node.args[0]).strip("'").split(".")[0]
            if name in NEVER_IMPORTED and not path.startswith(ORACLES):
                found.append(f"{path}:{node.lineno}: {name} is imported in {ORACLES} alone")
    allowed = {node.func for node in tree if path == PICKLES and isinstance(node, ast.Call) and _tame(node)}
    for node in tree:
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load" and node not in allowed:
            found.append(f"{path}:{node.lineno}: torch.load runs what it reads")
    return found


def _tame(call: ast.Call) -> bool:
    """Whether a call says weights_only=True in so many words."""
    return any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in call.keywords)


def durability_breaches(path: str, source: str) -> list[str]:
    """Calls that rename or fsync files; `str.replace` and `Storage.rename` take two arguments, those of a path one."""
    if path in DURABLE:
        return []
    return [
        f"{path}:{call.lineno}: {ast.unparse(call.func)} is for vitral/core/storage.py"
        for call in nodes(source)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if ast.unparse(call.func) in {"os.replace", "os.rename", "os.fsync", "os.fdatasync"}
        or (call.func.attr in {"replace", "rename"} and len(call.args) == 1 and not _starred(call))
    ]


def _starred(call: ast.Call) -> bool:
    return bool(call.keywords) or isinstance(call.args[0], ast.Starred)


def size_breaches(path: str, source: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"{path}: {lines} lines, at most {MOST_LINES}"] if lines > MOST_LINES else []


def name_breaches(path: str, source: str) -> list[str]:
    name = PurePosixPath(path)
    return [f"{path}: the name says nothing"] if any(name.match(vague) for vague in VAGUE_NAMES) else []


def folder_breaches(paths: Iterable[str]) -> list[str]:
    """Folders with more modules than a reader takes in at a glance; `__init__.py` is the folder's own."""
    counts = Counter(str(PurePosixPath(path).parent) for path in paths if not path.endswith("/__init__.py"))
    return [f"{folder}: {count} files, at most {MOST_FILES}" for folder, count in counts.items() if count > MOST_FILES]


def shadow_breaches(paths: Iterable[str], public: Iterable[str]) -> list[str]:
    """Packages with the name of a public function, which an import would put in its place."""
    rooms = {unit(path) for path in paths if PurePosixPath(path).parts[1:2]}
    return [f"vitral/{name}: vitral.{name} is public already" for name in sorted(rooms & set(public))]


def mirror_breaches(tests: Iterable[str], modules: Iterable[str]) -> list[str]:
    """Tests that stand beside no module whose name theirs begins with, as `test_position_sincos.py` does."""
    known = set(modules)
    found = []
    for test in tests:
        folder, _, name = test.replace("tests/", "vitral/", 1).rpartition("/test_")
        words = name.removesuffix(".py").split("_")
        candidates = {f"{folder}/{'_'.join(words[:count])}.py" for count in range(1, len(words) + 1)}
        if not candidates & known and test not in WHOLE_PACKAGE_TESTS:
            found.append(f"{test}: there is no {folder}/{name}")
    return found


def deferred_names(source: str) -> dict[str, str]:
    """Name and module of each import under `if TYPE_CHECKING`."""
    blocks = [node for node in parsed(source).body if isinstance(node, ast.If)]
    imported = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imported for alias in node.names}


FILES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}
HOMES = deferred_names((ROOT / "vitral/__init__.pyi").read_text(encoding="utf-8"))
PACKAGE = {path: source for path, source in FILES.items() if path.startswith("vitral/")}


def test_modules_import_only_from_the_lines_below() -> None:
    assert [breach for path, source in PACKAGE.items() for breach in layer_breaches(path, source)] == []


def test_vitral_runs_no_code_from_files_and_needs_neither_torchvision_nor_timm() -> None:
    assert [breach for path, source in PACKAGE.items() for breach in unsafe_breaches(path, source)] == []


def test_files_are_renamed_and_flushed_in_one_place() -> None:
    assert [breach for path, source in PACKAGE.items() for breach in durability_breaches(path, source)] == []


def test_files_are_short() -> None:
    assert [breach for path, source in FILES.items() for breach in size_breaches(path, source)] == []


def test_file_names_say_what_is_inside() -> None:
    assert [breach for path, source in FILES.items() for breach in name_breaches(path, source)] == []


def test_tests_stand_where_their_module_stands() -> None:
    tests = [path for path in FILES if path.startswith("tests/") and "/test_" in path]
    assert __file__.endswith(WHOLE_PACKAGE_TESTS)
    assert mirror_breaches(tests, PACKAGE) == []


@pytest.mark.parametrize("name", vitral.__all__)
def test_a_public_name_is_the_one_in_its_module(name: str) -> None:
    assert getattr(vitral, name) is getattr(import_module(HOMES[name]), name)
    assert name in dir(vitral)


def test_public_names_are_sorted_and_the_same_to_a_type_checker() -> None:
    assert vitral.__all__ == sorted(HOMES)


def test_folders_show_their_plan() -> None:
    assert folder_breaches(PACKAGE) == []


def test_no_package_has_the_name_of_a_public_function() -> None:
    assert shadow_breaches(PACKAGE, vitral.__all__) == []
    import_module("vitral.training.loop")
    assert callable(vitral.train)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Vite'"):
        vitral.Vite  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("vitral/models/vit.py", "from vitral.training import loop"),
        ("vitral/models/vit.py", "import vitral.weights.bundle as bundle"),
        ("vitral/models/vit.py", "from vitral.data.loading import Loader"),
        ("vitral/models/vit.py", "from vitral import explain"),
        ("vitral/models/vit.py", "from vitral import Config"),
        ("vitral/models/vit.py", "import vitral"),
        ("vitral/models/vit.py", "from ..training import loop"),
        ("vitral/models/vit.py", "from .. import tasks"),
        ("vitral/models/vit.py", "def build():\n    from vitral.data import loading"),
        ("vitral/models/vit.py", "if TYPE_CHECKING:\n    from vitral.cli import main"),
        ("vitral/core/errors.py", "from vitral.html.text import percent"),
        ("vitral/cli/terminal/app.py", "from vitral.__main__ import main"),
        ("vitral/training/loop.py", "from vitral.evaluation.knn import predict"),
        ("vitral/inference/predictor.py", "from vitral.exporters.export import export"),
        ("vitral/novel.py", ""),
    ],
)
def test_an_import_that_goes_up_or_sideways_is_found(path: str, source: str) -> None:
    assert len(layer_breaches(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "vitral/models/vit.py",
            "from vitral.models.block import Block\nfrom . import head\nfrom .embed import Patches",
        ),
        ("vitral/models/vit.py", "from vitral.core.errors import ConfigError\nfrom ..core import config\nimport torch"),
        ("vitral/training/checkpoints/state.py", "from ...weights import bundle\nfrom ..loop import run"),
        ("vitral/cli/terminal/app.py", "from vitral import __version__"),
        ("vitral/__init__.py", "from vitral.models import Vit"),
    ],
)
def test_an_import_from_below_is_allowed(path: str, source: str) -> None:
    assert layer_breaches(path, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torchvision",
        "from torchvision.ops import nms",
        "def pick():\n    import timm.models",
        "import pickle",
        "code = import_module('timm')",
        "code = importlib.import_module('transformers.models')",
        "from pickle import loads",
        "weights = torch.load(path)",
        "from torch import load",
    ],
)
def test_an_unsafe_or_unwanted_import_is_found(source: str) -> None:
    assert len(unsafe_breaches("vitral/weights/bundle.py", source)) == 1


@pytest.mark.parametrize(
    "call", ["os.replace(one, two)", "os.rename(one, two)", "os.fsync(1)", "draft.replace(path)", "old.rename(new)"]
)
def test_a_file_that_is_renamed_or_flushed_elsewhere_is_found(call: str) -> None:
    assert len(durability_breaches("vitral/runs/train.py", call)) == 1
    assert durability_breaches("vitral/core/storage.py", call) == []
    assert durability_breaches("vitral/runs/train.py", "disk.rename(old, new); name.replace('a', 'b')") == []


def test_a_file_of_501_lines_is_found() -> None:
    assert size_breaches("vitral/cli/terminal/app.py", "x = 1\n" * 500) == []
    assert len(size_breaches("vitral/cli/terminal/app.py", "x = 1\n" * 501)) == 1


@pytest.mark.parametrize("name", ["utils", "helpers", "common", "misc", "new_loop", "legacy_loop"])
def test_a_vague_file_name_is_found(name: str) -> None:
    assert len(name_breaches(f"vitral/training/{name}.py", "")) == 1
    assert name_breaches("vitral/training/renew_loop.py", "") == []


def test_a_test_without_its_module_is_found() -> None:
    modules = ["vitral/core/config.py", "vitral/models/vit.py", "vitral/models/logit_lens.py"]
    good = ["tests/core/test_config.py", "tests/models/test_vit_tokens.py", "tests/models/test_logit_lens.py"]
    assert mirror_breaches(good, modules) == []
    assert mirror_breaches(["tests/core/test_vit.py"], modules) == [
        "tests/core/test_vit.py: there is no vitral/core/vit.py"
    ]


def test_a_folder_of_16_files_is_found() -> None:
    files = ["vitral/core/__init__.py", *(f"vitral/core/part{number}.py" for number in range(15))]
    assert folder_breaches(files) == []
    assert folder_breaches([*files, "vitral/core/one_more.py"]) == ["vitral/core: 16 files, at most 15"]


def test_a_package_with_the_name_of_a_public_function_is_found() -> None:
    assert shadow_breaches(["vitral/training/loop.py"], ["train"]) == []
    assert len(shadow_breaches(["vitral/train/loop.py"], ["train"])) == 1


def test_pickles_are_opened_in_one_place_and_for_weights_alone() -> None:
    assert unsafe_breaches(PICKLES, "torch.load(path, weights_only=True)") == []
    assert len(unsafe_breaches(PICKLES, "torch.load(path)")) == 1
    assert len(unsafe_breaches(PICKLES, "torch.load(path, weights_only=False)")) == 1
    assert len(unsafe_breaches("vitral/weights/load.py", "torch.load(path, weights_only=True)")) == 1


ERRORS = {"ConfigError": "config", "DataError": "data", "ServeError": "serve", "WeightsError": "weights"}


def error_codes(source: str) -> Iterator[tuple[str, str]]:
    """Class and code of every error that a file builds, where the code stands there literally."""
    for node in nodes(source):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
            codes = [word.value for word in node.keywords if word.arg == "code"]
            chosen = [
                side
                for code in codes
                for side in ((code.body, code.orelse) if isinstance(code, ast.IfExp) else (code,))
            ]
            yield from ((node.func.id, str(code.value)) for code in chosen if isinstance(code, ast.Constant))


def code_breaches(path: str, source: str) -> list[str]:
    """Codes that are malformed, or that have the prefix of another class."""
    return [
        f"{path}: {name} with the code {code!r}"
        for name, code in error_codes(source)
        if not re.fullmatch(r"[a-z]+\.[a-z0-9_]+", code) or code.split(".")[0] != ERRORS.get(name, code.split(".")[0])
    ]


def test_codes_of_errors_are_well_formed() -> None:
    assert [breach for path, source in PACKAGE.items() for breach in code_breaches(path, source)] == []


def code_literals(source: str, prefixes: Iterable[str]) -> set[str]:
    """Every string of a file that is a code, wherever it stands; names of files and old fields are not codes."""
    form = re.compile(rf"({'|'.join(prefixes)})\.(?!({'|'.join(NOT_CODES)})$)[a-z0-9_]+")
    strings = (node.value for node in nodes(source) if isinstance(node, ast.Constant))
    return {text for text in strings if isinstance(text, str) and form.fullmatch(text)}


def documented_codes(page: str) -> list[str]:
    """The codes in the first column of the tables of docs/errors.md."""
    return re.findall(r"^\| `([a-z]+\.[a-z0-9_]+)` \|", page, flags=re.MULTILINE)


NOT_CODES = ("json", "py", "npz", "where", "share", "fraction", "path")


@cache
def all_codes() -> set[str]:
    """Every code that stands anywhere in the package."""
    prefixes = {code.split(".")[0] for source in PACKAGE.values() for _, code in error_codes(source)}
    return {code for source in PACKAGE.values() for code in code_literals(source, prefixes)}


def test_every_code_of_an_error_is_in_the_docs_and_no_other() -> None:
    found = documented_codes((ROOT / "docs" / "errors.md").read_text(encoding="utf-8"))
    assert {code for source in PACKAGE.values() for _, code in error_codes(source)} <= all_codes()
    assert sorted(all_codes() - set(found)) == [], "add these to docs/errors.md: meaning, and what to do"
    assert sorted(set(found) - all_codes()) == [], "docs/errors.md has codes that no error has"
    assert len(found) == len(set(found))


def test_a_code_is_found_wherever_it_stands() -> None:
    source = (
        'code = "data.empty" if x else "data.bad"; Mismatch("", "weights.odd"); open("config.json"); f("html.page")'
    )
    assert code_literals(source, ["data", "weights", "config"]) == {"data.empty", "data.bad", "weights.odd"}
    assert documented_codes("| `data.empty` | No images. | Check. |\ntext `data.bad`") == ["data.empty"]


def test_every_code_of_an_error_is_asserted_by_a_test() -> None:
    asserted = "\n".join(source for path, source in FILES.items() if path.startswith("tests/"))
    assert len(all_codes()) > 100
    assert sorted(code for code in all_codes() if not re.search(rf"\b{re.escape(code)}\b", asserted)) == []


@pytest.mark.parametrize("call", ['DataError("", code="config.empty")', 'DataError("", code="data.Empty")'])
def test_a_code_of_another_class_or_form_is_found(call: str) -> None:
    assert len(code_breaches("vitral/data/samples.py", call)) == 1
    assert code_breaches("vitral/data/samples.py", 'DataError("", code="data.empty")') == []


def oracle_breaches(path: str, source: str) -> list[str]:
    """Imports of a library's oracle, which is run and never imported: only `oracle.py` starts it."""
    free = ("vitral.weights.oracles.oracle", "vitral.weights.oracles.torchvision_stub", "vitral.weights.oracles.worker")
    return [
        f"{path}:{line}: {name} is run in a separate process"
        for line, name in imports(path, source)
        if name.startswith("vitral.weights.oracles.") and not name.startswith(free)
    ]


def test_other_libraries_run_in_processes_of_their_own() -> None:
    assert [breach for path, source in PACKAGE.items() for breach in oracle_breaches(path, source)] == []
    assert len(oracle_breaches("vitral/weights/convert.py", "from vitral.weights.oracles.timm import open_model")) == 1
    assert unsafe_breaches("vitral/weights/oracles/timm.py", "code = import_module('timm')") == []
