"""What stands around the package: CI, hooks, the image for Docker, and the check of the wheel."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOW = ".github/workflows/ci.yml"
HOOKS = ".pre-commit-config.yaml"


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def parsed(path: str) -> Any:
    return yaml.safe_load(text(path))


def commands(path: str) -> list[str]:
    """The lines of a shell script but for comments."""
    lines = (line.strip() for line in text(path).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def dockerfile() -> list[list[str]]:
    """The instructions of the Dockerfile, each as its words."""
    whole = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text("Dockerfile"), flags=re.MULTILINE))
    return [shlex.split(line) for line in whole.splitlines() if line.strip()]


@pytest.mark.parametrize("path", [WORKFLOW, HOOKS])
def test_yaml_files_are_mappings(path: str) -> None:
    assert isinstance(parsed(path), dict)


def test_the_workflow_does_what_ci_run_does_and_no_more() -> None:
    steps = parsed(WORKFLOW)["jobs"]["ci"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["bash .ci/run"]
    assert [step["uses"].partition("@")[0] for step in steps if "uses" in step] == [
        "actions/checkout",
        "actions/setup-python",
    ]
    assert steps[1]["with"] | {"cache-dependency-path": ""} == {
        "python-version": "3.11",
        "cache": "pip",
        "cache-dependency-path": "",
    }
    for path in steps[1]["with"]["cache-dependency-path"].split():
        assert (ROOT / path).is_file()


def test_hooks_are_the_checks_of_make_check_and_need_no_network() -> None:
    (repo,) = parsed(HOOKS)["repos"]
    assert repo["repo"] == "local"
    assert {hook["language"] for hook in repo["hooks"]} == {"system"}
    for hook in repo["hooks"]:
        assert f".venv/bin/{hook['name']}" in commands("Makefile")
        assert hook["entry"].startswith(f".venv/bin/{hook['name']}")


def test_ci_checks_tests_and_installs_the_wheel() -> None:
    assert {"make check", "make test-all", "make wheel-check"} <= set(commands(".ci/run"))
    assert "bash tools/wheel_check.sh" in commands("Makefile")


def test_the_image_installs_what_was_tested_and_is_not_run_by_root() -> None:
    instructions = dockerfile()
    assert instructions[0] == ["FROM", "python:3.11-slim"]
    installs = [words for words in instructions if words[0] == "RUN" and "install" in words and "pip" in words]
    assert len(installs) == 1
    assert installs[0][installs[0].index("-c") + 1] == "/src/constraints.txt"
    assert [words[1] for words in instructions if words[0] == "USER"] == ["vitral"]
    assert ["ENTRYPOINT", "[vitral]"] in instructions


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    copied = {name for words in dockerfile() if words[0] == "COPY" for name in words[1:-1]}
    allowed = {line.removeprefix("!") for line in commands(".dockerignore") if line.startswith("!")}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_every_pinned_version_is_one_that_the_package_allows() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pins = dict(line.split("==") for line in commands("constraints.txt"))
    versions = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads(text("pyproject.toml"))["project"]
    named = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    for requirement in map(Requirement, named):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is None or requirement.specifier.contains(version), requirement


def test_the_core_is_pinned_whole() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pinned = {canonicalize_name(line.split("==")[0]) for line in commands("constraints.txt")}
    needed = tomllib.loads(text("pyproject.toml"))["project"]["dependencies"]
    assert {canonicalize_name(Requirement(each).name) for each in needed} <= pinned


def test_no_file_names_a_package_host() -> None:
    for path in (WORKFLOW, HOOKS, "Dockerfile", ".dockerignore", "tools/wheel_check.sh", "Makefile", "constraints.txt"):
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text(path)), path


def test_the_readme_has_a_quick_start_to_run() -> None:
    section = re.split(r"^## ", text("README.md").partition("\n## Quick start\n")[2], flags=re.MULTILINE)[0]
    assert re.search(r"^```sh\n.*^vitral train sample .*^```$", section, flags=re.MULTILINE | re.DOTALL)
