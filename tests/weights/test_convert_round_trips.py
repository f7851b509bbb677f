"""From each format to each library and back: every bit, or every change by name, or a reason."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitral
from benchmarks.round_trips.__main__ import (
    TARGETS,
    Trip,
    library_counts,
    make_source,
    matrix,
    read_trips,
    round_trip,
    run,
    totals,
)
from benchmarks.round_trips.subjects import SUBJECTS, Subject
from tests.errors import raises
from vitral.models import LayerScale, Learned1d, MeanPool, NoHead, PreNorm, Tokens
from vitral.weights.certificate import NOT_RUN
from vitral.weights.convert import Origin, select_format, write_model
from vitral.weights.formats.huggingface.beit import HfBeit
from vitral.weights.formats.registry import FORMATS
from vitral.weights.formats.timm import Timm

BY_NAME = {each.name: each for each in SUBJECTS}
FEW = {  # the variants of the paper, DeiT, CLIP and BEiT, each where it is at home
    "timm": ("mean-timm", "registers-with-rows", "hybrid-timm", "gated", "clip-timm", "relative-bias-timm"),
    "google": ("plain-google", "hybrid-root"),
    "big_vision": ("class-without-row", "attention-pool"),
    "hf-vit": ("plain-tanh-hf",),
    "hf-deit": ("distilled",),
    "hf-dinov2": ("registers",),
    "dino": ("features-dino",),
}
ROOT = Path(__file__).parent.parent.parent
UNREAD = {"open_clip-timm"}  # whose files the tool cannot make: timm's names in a whole CLIP


def trips(formats: Sequence[str], subjects: Sequence[str], targets: Sequence[str] = TARGETS) -> list[Trip]:
    found = list(run(formats, subjects, targets, oracles=False))
    assert not [trip for trip in found if trip.verdict == "WRONG"]
    assert all(trip.detail for trip in found if trip.verdict in ("refused", "named"))
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("source", FEW)
def test_what_comes_back_is_equal_or_named(source: str) -> None:
    found = trips([source], FEW[source], ("timm", "google", "huggingface"))
    assert {trip.subject for trip in found} == set(FEW[source])


def test_deit_keeps_its_two_heads_and_both_rows_through_either_library() -> None:
    """The heads were once merged, and the row of the distillation token was part of the token."""
    for source, subject, to in (("timm", "distilled-timm", "huggingface"), ("hf-deit", "distilled-timm", "timm")):
        (trip,) = trips([source], [subject], [to])
        assert (trip.verdict, trip.difference) == ("equal", 0.0)


def test_an_eps_that_comes_back_as_another_is_named() -> None:
    (trip,) = trips(["hf-vit"], ["plain-tanh-hf"], ["google"])
    assert (trip.verdict, trip.detail) == ("named", "eps 1e-12 became 1e-06")


def test_a_change_that_no_certificate_names_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source(Timm(), BY_NAME["plain-timm"], tmp_path / "a")
    assert source is not None
    assert round_trip(source, "torchvision").verdict == "equal"
    monkeypatch.setattr("vitral.weights.convert.tensor_changes", lambda *_: iter(()))
    source = make_source(Timm(), BY_NAME["plain-timm"], tmp_path / "b")
    assert source is not None
    opened = source.opened.loaded.model.state_dict()
    opened["norm.weight"][0] += 1e-6  # as if the way had changed it
    trip = round_trip(source, "torchvision")
    assert (trip.verdict, trip.detail) == ("WRONG", "not named: norm.weight")


def test_the_matrix_counts_by_source_and_target() -> None:
    one = Trip("timm", "a", "google", "equal")
    table = matrix([one, replace(one, subject="b", verdict="refused"), replace(one, target="timm")])
    assert table.splitlines() == [
        "| from | google | timm |",
        "|---|---|---|",
        "| timm | 1 equal, 1 refused | 1 equal |",
    ]


@pytest.mark.slow
def test_every_format_is_a_source_and_every_trip_is_equal_named_or_refused_with_a_reason() -> None:
    found = trips([each.name for each in FORMATS], list(BY_NAME))
    assert {trip.source for trip in found} == {each.name for each in FORMATS} - UNREAD
    assert {trip.subject for trip in found} == set(BY_NAME)
    own = {each.name: each.library for each in FORMATS if each.writable}
    assert all(trip.verdict == "equal" for trip in found if own.get(trip.source) == trip.target)


def test_another_format_of_a_library_is_taken_where_the_first_needs_a_tensor_of_zeros(tmp_path: Path) -> None:
    """BEiT and InternVL hold these settings; keys have no bias in BEiT."""
    fields: dict[str, Any] = {
        "block": PreNorm(scale=LayerScale(init=1.0)),
        "pool": MeanPool(norm="none"),
        "head": NoHead(),
    }
    model = Subject("mean", position=Learned1d(resampling="bicubic"), **fields).loaded()
    assert select_format(model, "huggingface").name == "hf-internvl"
    keys = [each for name, each in model.model.state_dict().items() if name.endswith("qkv.bias")]
    with torch.no_grad():
        for bias in keys:
            bias.chunk(3)[1].zero_()
    assert select_format(model, "huggingface").name == "hf-beit"
    scaled = Subject("normed", position=Learned1d(resampling="bicubic"), pool=MeanPool(norm="after")).loaded()
    assert not list(HfBeit().unsupported(scaled.bundle))
    (tmp_path / "file").write_bytes(b"")
    with raises("weights.no_counterpart", "bias of the keys"):  # there is no other
        write_model(scaled, Origin(tmp_path / "file"), tmp_path / "out", "huggingface")


def test_positions_of_registers_are_part_of_them_where_the_library_has_none(tmp_path: Path) -> None:
    """timm has rows for registers, DINOv2 of Hugging Face has none: the certificate names the tokens that took them."""
    position = Learned1d(resampling="bicubic_antialias", register_rows=True)
    fields: dict[str, Any] = {"block": PreNorm(scale=LayerScale(init=1.0)), "head": NoHead()}
    model = Subject("rows", position=position, tokens=Tokens(registers=2), **fields).loaded()
    (tmp_path / "file").write_bytes(b"")
    found = write_model(model, Origin(tmp_path / "file"), tmp_path / "out", "huggingface")
    named = {each.name: each for each in found.tensors}
    rows = model.model.state_dict()["position.table"][:, 1:3]
    assert named.keys() == {"prefix.tokens", "position.table"}
    assert named["prefix.tokens"].largest == pytest.approx(float(rows.abs().max()), rel=1e-6)
    assert found.again.largest < 1e-6
    again = vitral.load(tmp_path / "out").model.state_dict()["prefix.tokens"]
    assert torch.equal(again[1:], model.model.state_dict()["prefix.tokens"][1:] + rows[0])


def test_the_page_states_the_trips_that_were_run() -> None:
    """The table and the numbers of docs/weights.md are those of the committed trips, whose libraries ran."""
    found = read_trips(ROOT / "benchmarks" / "round_trips" / "trips.jsonl")
    page = (ROOT / "docs" / "weights.md").read_text(encoding="utf-8")
    text = " ".join(page.split())
    assert matrix(found) in page
    assert not [trip for trip in found if trip.verdict == "WRONG"]
    assert totals(found).startswith(f"{len(found)} trips: ")
    assert f"the files of all {len(found)} trips" in text
    firsts = {(trip.source, trip.subject): trip.libraries[0] for trip in found}
    ran = [library for library in firsts.values() if not library.startswith(NOT_RUN)]
    assert f"Of the {len(firsts)} files that the trips begin with, {len(ran)} were run by a library" in text
    own = [library for library in ran if ", which reads" not in library]
    assert f"all {len(own)} of these four, and {len(ran) - len(own)} of Google, facebook and iBOT by timm" in text
    installed = {each.name for each in FORMATS if each.library in ("timm", "huggingface", "torchvision", "vit-pytorch")}
    assert all(not firsts[key].startswith(NOT_RUN) for key in firsts if key[0] in installed)
    later = [library for trip in found for library in trip.libraries[1:]]
    assert f"the {len(later)} files that were written and read on the way" in text
    assert f"{sum(not library.startswith(NOT_RUN) for library in later)} were run" in text
    assert library_counts(found)[0] == f"files of the sources: {len(firsts)}"
    assert {trip.source for trip in found} == {each.name for each in FORMATS} - UNREAD
