"""The pure parts of benchmarks.zoo: verdicts, tables, random weights."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitral
from benchmarks.grid import Record, read_records
from benchmarks.zoo.judge import (
    Answers,
    Subject,
    float64,
    judge,
    names_candidate,
    relative_error,
    tokens_error,
    verdict_of,
    verdict_of_refusal,
)
from benchmarks.zoo.random_weights import randomize
from benchmarks.zoo.report import failed, latest, markdown, missing_traits, reason_of, report, table
from tests.models.variants import small
from vitral.models.vit import VisionTransformer
from vitral.weights.formats.registry import FAMILIES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "weights.md").read_text(encoding="utf-8")


def test_an_error_is_relative_to_the_largest_value_and_infinite_for_what_cannot_be_compared() -> None:
    theirs = torch.tensor([[2.0, -4.0]])
    assert relative_error(theirs + 0.4, theirs) == pytest.approx(0.1)
    assert relative_error(theirs[:, :1], theirs) == float("inf")
    assert relative_error(theirs * float("nan"), theirs) == float("inf")
    assert relative_error(theirs[:, :0], theirs[:, :0]) == 0


def test_tokens_are_compared_by_the_first_definition_unless_another_is_met() -> None:
    after, before = torch.ones(1, 2), torch.full((1, 2), 3.0)
    definitions = {"after": after, "before": before}
    assert tokens_error(after, definitions) == (0.0, "")
    assert tokens_error(before, definitions) == (0.0, "tokens before")
    assert tokens_error(after * 2, definitions) == (1.0, "")


def test_a_refusal_of_a_bare_file_must_name_the_architecture_as_a_whole_word() -> None:
    message = "ambiguous; give one of vit_base_patch16_224, vit_base_patch16_224_miil"
    assert names_candidate(message, "vit_base_patch16_224")
    assert not names_candidate("give vit_base_patch16_224_miil", "vit_base_patch16_224")
    assert not names_candidate("give test_vit2", "test_vit")
    assert verdict_of_refusal("bare", "vit_base_patch16_224", message) == "refused"
    assert verdict_of_refusal("bare", "vit_tiny_patch16_224", message) == "unnamed"
    assert verdict_of_refusal("hub", "vit_tiny_patch16_224", message) == "refused"
    assert verdict_of_refusal("bare", "", message) == "refused"


def test_right_takes_every_size_and_an_output_left_out_with_a_word_is_refused() -> None:
    right, off = {"tokens": 1e-15, "logits": 1e-6}, {"tokens": 1e-15, "logits": 2e-6}
    assert verdict_of([right, right], [])["verdict"] == "right"
    assert verdict_of([right, off], [])["verdict"] == "wrong"
    assert verdict_of([right, off], ["ignored mask_token: unused"])["verdict"] == "wrong"
    assert verdict_of([right, off], ["ignored pooler.dense.bias: unused"])["verdict"] == "refused"
    assert verdict_of([{"tokens": 1.0, "logits": 1.0}], ["ignored pooler.dense.bias: unused"])["verdict"] == "wrong"


def test_casts_to_float32_are_lifted_and_the_default_comes_back() -> None:
    with float64():
        assert torch.ones(2).float().dtype == torch.float64
        assert torch.ones(2).to(torch.float32).softmax(0, dtype=torch.float32).dtype == torch.float64
    assert torch.ones(2).dtype == torch.float32


def ask(model: VisionTransformer, images: Tensor) -> Answers:
    with float64():
        features = model.forward_features(images)
        return Answers(images, {"own": torch.cat([features.cls, features.patches], dim=1)}, model(images))


def test_a_file_is_judged_by_its_tokens_and_logits(tmp_path: Path) -> None:
    model = small().build()
    randomize(model, seed=3)
    vitral.save(model, tmp_path / "model")
    images = torch.randn(1, model.config.channels, *model.config.image_size, dtype=torch.float64)
    truth = ask(model.double().eval(), images)
    assert truth.logits is not None
    ways: dict[str, tuple[Path, dict[str, Any]]] = {"hub": (tmp_path / "model", {}), "bare": (tmp_path / "none", {})}
    found = judge("hub", Subject(ways, [truth]))
    assert found["verdict"] == "right"
    assert found["errors"][0]["logits"] < 1e-12
    assert judge("hub", Subject(ways, [truth._replace(logits=truth.logits + 0.1)]))["verdict"] == "wrong"
    assert judge("bare", Subject(ways, [truth], candidate="vit_tiny"))["verdict"] == "unnamed"
    assert judge("bare", Subject(ways, [truth]))["code"] == "weights.not_found"
    broken = truth._replace(images=images[:, :, :-1])
    assert judge("hub", Subject(ways, [broken]))["stage"] == "31x48"


def test_random_weights_leave_nothing_trivial_and_are_the_same_for_a_seed() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Embedding(4, 8), nn.BatchNorm1d(8))
    randomize(model, seed=1)
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert all(tensor.float().std() > 0 for name, tensor in first.items() if "num_batches" not in name)
    assert first["1.weight"].mean() == pytest.approx(1, abs=0.3)
    assert first["3.running_var"].min() > 0
    randomize(model, seed=1)
    assert all(torch.equal(tensor, first[name]) for name, tensor in model.state_dict().items())


def record(name: str, verdict: str, **more: Any) -> dict[str, Any]:
    return {"group": "vit", "name": name, "way": "hub", "verdict": verdict, "sizes": ["8x8"], **more}


def test_the_table_counts_the_latest_record_of_each_cell() -> None:
    records = latest([record("a", "wrong"), record("b", "right"), record("a", "right"), record("c", "not built")])
    assert [line.split() for line in table(records)][1] == ["vit", "hub", "2", "2", "0", "0", "0", "0", "1", "100.0"]
    assert not failed(records)
    assert failed([*records, record("d", "unnamed")])


def test_refusals_are_grouped_by_reason_and_missing_parts_ranked() -> None:
    one = record("a", "refused", code="weights.x", message="blocks.0.q is 3x4 wide", traits=["rope", "norm"])
    two = record("b", "refused", code="weights.x", message="blocks.1.q is 5x6 wide", traits=["rope", "gate"])
    good = record("c", "right", traits=["norm"])
    assert reason_of(one) == reason_of(two)
    assert [line.split() for line in missing_traits([one, two, good])] == [["2", "x", "rope"], ["1", "x", "gate"]]
    off = record("d", "wrong", errors=[{"tokens": 0.5}])
    assert "8x8 tokens 5.0e-01" in report([one, two, good, off])


def test_a_line_that_was_not_finished_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "zoo.jsonl"
    file.write_text(json.dumps(record("a", "right")) + "\n" + '{"group": "vi')
    assert [found["name"] for found in read_records(file)] == ["a"]
    assert read_records(tmp_path / "none") == []


def measured() -> list[Record]:
    """The committed cells, the last of each."""
    return latest(read_records(ROOT / "benchmarks" / "zoo" / "cells.jsonl"))


def verdicts(*groups: str, way: str) -> Counter[str]:
    return Counter(cell["verdict"] for cell in measured() if cell["group"] in groups and cell["way"] == way)


def test_the_page_states_the_cells_that_were_measured_and_none_is_wrong() -> None:
    cells = measured()
    assert not failed(cells)
    assert "\n".join(markdown(cells)) in PAGE
    given, bare = (verdicts("vit-pytorch", "torchvision", way=way) for way in ("settings", "bare"))
    text = " ".join(PAGE.split())
    assert f"{given['right']} of {given.total()} models are right and {given['refused']} is refused" in text
    assert f"without settings, {bare['right']} is right and {bare['refused']} are refused" in text
    others = verdicts("vit-pytorch-others", way="settings") + verdicts("vit-pytorch-others", way="bare")
    assert set(others) == {"refused"}
    assert f"All {others.total() // 2} variants of vit-pytorch that are not plain are refused" in text
    towers = verdicts("transformers-bare", way="bare")
    assert f"The state dicts of {towers.total()} vision towers of transformers" in text
    counts = f"{towers['right']} are right and {towers['refused']} are refused"
    assert f"{counts}, most as what they are and" in text
    assert f"{towers['not built']} could not be asked" in text


def test_shares_of_models_that_are_right_reach_their_goals() -> None:
    for group in ("vit", "deit", "eva", "beit", "flexivit", "transformers", "transformers-more"):
        hub = verdicts(group, way="hub")
        assert hub["right"] >= (0.95 if group == "vit" else 0.9) * hub.total(), group
        if (arch := verdicts(group, way="arch")) and hub:
            assert arch["right"] >= 0.85 * hub.total(), group


def test_the_readme_and_the_page_state_the_same_numbers() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    timm, library = verdicts("vit", way="hub"), verdicts("transformers", way="hub")
    assert f"of {timm.total()} `vit_*` names of timm, {timm['right']} give its outputs to 1e-6" in readme
    assert f"and {timm['refused']} are refused" in readme
    assert f"of {library.total()} models of transformers, {library['right']} and {library['refused']};" in readme
    groups = ("vit", "deit", "eva", "aimv2", "beit", "flexivit", "naflexvit", "test_vit")
    plain = verdicts(*groups, way="hub")
    assert f"{plain['right']} of its {plain.total()} plain Vision Transformers open" in PAGE


def test_every_model_type_that_is_read_is_on_the_page() -> None:
    types = {kind for family in FAMILIES for kind in family.types}
    assert f"{len(types)} values of `model_type`" in PAGE
    listed = PAGE.partition("## Hugging Face\n")[2].partition("\n- **")[0]
    short = {kind: kind.removesuffix("_vision_model") for kind in types}  # the tower alone of a family that is listed
    assert not [kind for kind in types if f"`{kind}`" not in listed and f"`{short[kind]}`" not in listed]
