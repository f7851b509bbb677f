"""The files of deploy/ speak of routes and options that exist."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from vitral.cli import app
from vitral.serving.http.access import OPEN_PATHS

DEPLOY = Path(__file__).parents[1] / "deploy"
OPTIONS = {name for option in get_command(app).commands["serve"].params for name in option.opts}  # type: ignore[attr-defined]


def containers(document: Any) -> list[Any]:
    """Every container below a document."""
    if isinstance(document, dict):
        own = document.get("containers", [])
        return own + [each for part in document.values() if part is not own for each in containers(part)]
    return [each for part in document for each in containers(part)] if isinstance(document, list) else []


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kserve.yaml"])
def test_a_manifest_has_probes_limits_and_options_that_exist(name: str) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / name).read_text()))
    (container,) = containers(documents)
    assert {each for each in container["args"] if each.startswith("--")} <= OPTIONS
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in OPEN_PATHS  # a probe has no token
    assert set(container["resources"]) == {"requests", "limits"}
    assert "VITRAL_TOKEN" in {each["name"] for each in container["env"]}


def test_the_container_file_starts_the_server_with_options_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert set(re.findall(r"--[a-z-]+", text.partition('CMD ["/model"')[2])) <= OPTIONS
    assert '"/src[serve,deploy]"' in text
    assert "USER 10001" in text


def test_the_example_for_ray_is_python_and_has_the_app_that_its_command_names() -> None:
    tree = ast.parse((DEPLOY / "ray_serve.py").read_text())
    assert "deploy.ray_serve:app" in (ast.get_docstring(tree) or "")
    assigned = {ast.unparse(target) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    assert "app" in assigned
