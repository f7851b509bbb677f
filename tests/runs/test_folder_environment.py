"""What is noted of where a run took place."""

import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch

import vitral
from vitral.core.machine import cpu_count, cpu_name
from vitral.runs import folder as folder_module
from vitral.runs.folder import Environment, GitRevision, capture_environment, git_revision


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    answer = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return answer.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    git(tmp_path, "init")
    (tmp_path / "a.py").write_text("1\n")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-m", "a")
    return tmp_path


def test_versions_and_machine_are_those_of_this_process() -> None:
    found = capture_environment("photos/", "abc", "def", "vitral train photos/")
    assert (found.vitral, found.torch) == (vitral.__version__, torch.__version__)
    assert (found.numpy, found.pillow) == (np.__version__, PIL.__version__)
    assert found.python == platform.python_version()
    assert found.cores == cpu_count() == int(subprocess.check_output(["nproc"], env=without("OMP_NUM_THREADS")))
    assert len(found.gpus) == torch.cuda.device_count()
    assert found.memory > 10**8
    assert found.processor == cpu_name() != ""
    assert (found.data, found.fingerprint, found.recipe, found.command) == (
        *("photos/", "abc"),
        *("def", "vitral train photos/"),
    )


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != name}


def test_it_survives_being_written() -> None:
    found = capture_environment("photos/", "abc", "def", "vitral")
    assert Environment.from_json(found.to_json()) == found


def test_the_commit_of_a_folder_inside_a_repository_is_found(repository: Path) -> None:
    (repository / "inner").mkdir()
    commit = git(repository, "rev-parse", "HEAD")
    assert len(commit) == 40
    assert git_revision(repository / "inner") == GitRevision(commit=commit, dirty=False)


def test_a_changed_file_is_dirty_and_a_new_one_is_not(repository: Path) -> None:
    (repository / "new.py").touch()
    assert not git_revision(repository).dirty
    (repository / "a.py").write_text("2\n")
    assert git_revision(repository).dirty
    git(repository, "add", "a.py")
    assert git_revision(repository).dirty


def test_a_folder_without_repository_or_commit_has_no_revision(tmp_path: Path) -> None:
    assert git_revision(tmp_path) == GitRevision()
    git(tmp_path, "init")
    assert git_revision(tmp_path) == GitRevision()


@pytest.mark.parametrize("script", ["", "#!/bin/sh\nexec /bin/sleep 60\n", "#!/bin/sh\necho abc; exit 3\n"])
def test_a_git_that_is_missing_or_hangs_or_fails_holds_nothing_up(
    repository: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = repository / "programs"
    programs.mkdir()
    if script:
        (programs / "git").write_text(script)
        (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(folder_module, "GIT_TIMEOUT", 0.3)
    assert git_revision(repository) == GitRevision()


def test_a_repository_cannot_have_a_program_started(repository: Path) -> None:
    spy = repository / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {repository}/started\n")
    spy.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(spy))
    git_revision(repository)
    assert not (repository / "started").exists()
