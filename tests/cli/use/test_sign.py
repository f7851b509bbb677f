"""`vitral sign`, and the options that decide how files are checked."""

import json
from pathlib import Path

import pytest

from tests.processes import run_forked
from tests.weights.bundles import bundle_of, tensors_of
from vitral.weights.bundle import write_bundle


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "best", bundle_of(), tensors_of(), "")
    return tmp_path


def test_a_key_is_created_a_bundle_signed_and_the_signature_required(home: Path) -> None:
    made = run_forked("sign", "--new-key", "me.key", cwd=home)
    assert (made.returncode, made.stdout) == (0, "me.key.pub\n")
    before = run_forked("describe", "best", "--json", "--require-signature", "me.key.pub", cwd=home)
    assert before.returncode == 1
    assert "weights.unsigned" in before.stderr
    assert run_forked("sign", "best", "--key", "me.key", cwd=home).stdout == "best/manifest.sig\n"
    after = run_forked("describe", "best", "--json", "--require-signature=me.key.pub", cwd=home)
    assert json.loads(after.stdout)["files"] == "signed"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("sign", "best"), "config.missing_value"),
        (("sign", "--key", "me.key"), "config.missing_value"),
        (("sign", "best", "--new-key", "me.key"), "config.conflict"),
        (("describe", "best", "--no-verify", "--require-signature", "me.pub"), "config.conflict"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(home: Path, words: tuple[str, ...], code: str) -> None:
    done = run_forked(*words, cwd=home)
    assert done.returncode == 2
    assert code in done.stderr


def test_describe_says_whether_the_files_were_verified(home: Path) -> None:
    assert json.loads(run_forked("describe", "best", "--json", cwd=home).stdout)["files"] == "verified"
    (home / "best/manifest.json").unlink()
    refused = run_forked("describe", "best", cwd=home)
    assert refused.returncode == 1
    assert "weights.no_manifest" in refused.stderr
    opened = run_forked("describe", "best", "--no-verify", cwd=home)
    assert opened.stdout.rstrip().endswith("files: skipped")
    assert "not verified" in opened.stderr
    named = run_forked("describe", "Ti/16", "--json", cwd=home)
    assert json.loads(named.stdout)["files"] == "none"
