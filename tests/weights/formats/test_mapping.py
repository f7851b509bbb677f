"""rules.yaml: the example of the documentation gives the logits of its code, and every tensor is accounted for.

D width 24, H 3 heads, 2 layers, 16 patches.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, gelu, layer_norm

import vitral
from tests.errors import raises
from tests.weights.formats.files import put
from vitral import cli
from vitral.core.config import Size, override
from vitral.core.documents import parse_yaml, to_yaml
from vitral.data.transforms.preprocessing import IMAGENET, Preprocessing
from vitral.weights.certificate import read_certificate
from vitral.weights.formats.mapping import WeightMap, read_map
from vitral.weights.formats.rules import export_tensors

DOCS = Path(__file__).parents[3] / "docs" / "weights.md"
Theirs = dict[str, Tensor]
Data = dict[str, Any]


def example() -> Data:
    """The rules in the documentation."""
    (text,) = re.findall(r"```yaml\n(# rules\.yaml\n.*?)```", DOCS.read_text(), flags=re.DOTALL)
    data = parse_yaml(text)
    assert isinstance(data, dict)
    return data


def theirs() -> Theirs:
    """The tensors of a made-up layout, random, with some that no model needs."""
    layer = {"ln_a.weight": (24,), "ln_a.bias": (24,), "qkv.w": (24, 72), "q.b": (24,), "k.b": (24,), "v.b": (24,),
             "out.w": (24, 24), "out.b": (24,), "ln_b.weight": (24,), "ln_b.bias": (24,), "up.weight": (48, 24),
             "up.bias": (48,), "down.weight": (24, 48), "down.bias": (24,)}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {f"enc.{n}.{part}": shape for n in (1, 2) for part, shape in layer.items()}
    shapes |= {"embed.kernel": (24, 3, 8, 8), "embed.bias": (24,), "cls": (24,), "pos": (17, 24)}
    shapes |= {"final.scale_and_shift": (48,), "fc.w": (24, 4), "fc.b": (4,), "iteration": (1,), "shadow.fc.w": (24, 4)}
    rng = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=rng) * 0.3 for name, shape in shapes.items()}


def their_logits(w: Theirs, images: Tensor) -> Tensor:
    """The code that such a file would come from: (B, 4)."""
    x = conv2d(images, w["embed.kernel"], w["embed.bias"], stride=8).flatten(2).mT  # (B, 16, D)
    x = torch.cat([w["cls"].expand(len(x), 1, -1), x], dim=1) + w["pos"]  # (B, 17, D)
    for n in ("enc.1.", "enc.2."):
        y = layer_norm(x, (24,), w[n + "ln_a.weight"], w[n + "ln_a.bias"], 1e-6)
        heads = (y @ w[n + "qkv.w"]).unflatten(-1, (3, 3, 8))  # (B, 17, H, qkv, d)
        biases = [w[f"{n}{part}.b"].view(3, 8) for part in "qkv"]
        q, k, v = ((heads[..., i, :] + bias).transpose(1, 2) for i, bias in enumerate(biases))  # (B, H, 17, d)
        mixed = (q @ k.mT / 8**0.5).softmax(dim=-1) @ v
        x = x + mixed.transpose(1, 2).flatten(2) @ w[n + "out.w"] + w[n + "out.b"]
        y = layer_norm(x, (24,), w[n + "ln_b.weight"], w[n + "ln_b.bias"], 1e-6)
        y = gelu(y @ w[n + "up.weight"].mT + w[n + "up.bias"])
        x = x + y @ w[n + "down.weight"].mT + w[n + "down.bias"]
    scale, shift = w["final.scale_and_shift"].chunk(2)
    return layer_norm(x, (24,), scale, shift, 1e-6)[:, 0] @ w["fc.w"] + w["fc.b"]


def rules_file(folder: Path, data: Data) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "rules.yaml"
    file.write_text(to_yaml(data))
    return file


def test_the_example_of_the_documentation_gives_the_logits_of_its_code(tmp_path: Path) -> None:
    weights, rules = theirs(), rules_file(tmp_path / "rules", example())
    made = vitral.convert(put(tmp_path / "theirs", weights), tmp_path / "ours", map=rules)
    model, bundle = vitral.load(tmp_path / "ours")
    images = torch.rand(3, 3, 32, 32) * 2 - 1
    with torch.no_grad():
        assert torch.allclose(model(images), their_logits(weights, images), atol=1e-5)
    assert bundle.classes == ("ant", "bee", "cat", "dog")
    assert any("[-1, 1]" in line for line in bundle.assumptions)
    found = read_certificate(tmp_path / "ours")
    assert found == made.certificate
    assert found.again.largest == 0
    assert (found.source, found.dropped, found.changed) == (None, ("iteration", "shadow.fc.w"), ())
    assert "rules of the user" in found.source_library
    assert "no library was run" in found.source_library
    assert '"enc.{block+1}.qkv.w"' in found.rules
    assert any("rules of the user" in line for line in found.lines())


def test_the_rules_lead_back_to_the_bits_of_the_file(tmp_path: Path) -> None:
    from vitral.weights.load import open_model

    weights = theirs()
    opened = open_model(put(tmp_path / "theirs", weights), weight_map=WeightMap.parse(example()))
    assert opened.source is not None
    again = export_tensors(opened.source.rules(), opened.loaded.model.state_dict())
    assert again.keys() == weights.keys() - {"iteration", "shadow.fc.w"}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in again.items())


def test_the_command_line_maps_with_a_model_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, config = example(), tmp_path / "model.yaml"
    config.write_text(to_yaml(data.pop("model")))
    file, rules = put(tmp_path / "theirs", theirs()) / "model.safetensors", rules_file(tmp_path / "rules", data)
    with pytest.raises(SystemExit) as left:
        cli.main(["convert", str(file), str(tmp_path / "ours"), "--map", str(rules), "--model", str(config)])
    assert (left.value.code, capsys.readouterr().out.strip()) == (0, str(tmp_path / "ours"))
    assert read_certificate(tmp_path / "ours").rules
    assert vitral.load(tmp_path / "ours").bundle.classes == ("ant", "bee", "cat", "dog")


def test_the_model_may_be_a_name_and_settings_apply(tmp_path: Path) -> None:
    data = example()
    data["model"] = "Ti/16"
    assert read_map(rules_file(tmp_path / "a", {**data, "classes": []})).model.width == 192
    del data["model"]
    file = rules_file(tmp_path / "b", {**data, "classes": []})
    assert read_map(file, "S/16").model.width == 384
    made = vitral.convert(
        put(tmp_path / "theirs", theirs()),
        tmp_path / "ours",
        map=override(WeightMap.parse(example()), {"model.eps": 1e-5}),
        settings={"mixer.heads": 6},
    )
    model = vitral.load(made.folder).bundle.model.model_dump()
    assert (model["eps"], model["mixer"]["heads"]) == (1e-5, 6)


def test_preprocessing_of_the_rules_is_taken(tmp_path: Path) -> None:
    given = override(
        WeightMap.parse(example()), {"preprocessing": Preprocessing(image_size=Size(32, 32), normalize=IMAGENET)}
    )
    bundle = vitral.load(vitral.convert(put(tmp_path / "a", theirs()), tmp_path / "b", map=given).folder).bundle
    assert bundle.preprocessing.normalize == IMAGENET
    assert not [line for line in bundle.assumptions if "[-1, 1]" in line]


def test_options_that_contradict_a_map_are_refused(tmp_path: Path) -> None:
    file, rules = put(tmp_path / "theirs", theirs()), WeightMap.parse(example())
    with raises("config.conflict", "format", "timm"):
        vitral.convert(file, tmp_path / "ours", map=rules, format="timm")
    with raises("config.unsupported", "arch"):
        vitral.convert(file, tmp_path / "ours", map=rules, arch="vit_base_patch16_224")
    made = vitral.convert(file, tmp_path / "ours", map=rules).folder
    with raises("config.conflict", "map"):
        vitral.convert(made, tmp_path / "again", map=rules)
    with raises("config.conflict", "model"):
        read_map(rules_file(tmp_path / "rules", example()), "S/16")
    with pytest.raises(SystemExit) as left:
        cli.main(["convert", str(made), str(tmp_path / "again"), "--model", "S/16"])
    assert left.value.code == 2


def changed(change: Callable[[Data], object]) -> Data:
    data = example()
    change(data)
    return data


def rule(data: Data, ours: str) -> Data:
    found = next(each for each in data["rules"] if each["ours"] == ours)
    assert isinstance(found, dict)
    return found


SPLIT = {"kind": "split", "sizes": [8, 16]}
MISFITS: dict[str, tuple[Callable[[Data], object], str, tuple[object, ...]]] = {
    "a tensor of the file is left over": (
        lambda data: data.update(drop=["iteration"]), "weights.unexpected_tensor", ("shadow.fc.w (24, 4)", "drop"),
    ),
    "a tensor of the model has no rule": (
        lambda data: data["rules"].remove(rule(data, "blocks.{block}.mlp_norm")),
        "weights.missing_tensor", ("2 x blocks.*.mlp_norm.weight (24,)",),
    ),
    "a tensor is not in the file": (
        lambda data: rule(data, "head.linear.bias").update(theirs="fc.bias"),
        "weights.missing_tensor", ("head.linear.bias", "fc.bias", "did you mean 'fc.b'"),
    ),
    "the model has another depth": (
        lambda data: data["model"].update(depth=3), "weights.missing_tensor", ("enc.3.ln_a.weight",),
    ),
    "a shape does not fit": (
        lambda data: rule(data, "head.linear.weight").update(steps=[]),
        "weights.shape_mismatch", ("fc.w (24, 4)", "(4, 24)", "head.linear.weight"),
    ),
    "a step is not possible": (
        lambda data: rule(data, "position.table").update(steps=[{"kind": "reshape", "shape": [1, 5, 24]}]),
        "weights.shape_mismatch", ("pos (17, 24)", "position.table", "reshape"),
    ),
    "dimensions are not those of the tensor": (
        lambda data: rule(data, "head.linear.bias").update(steps=[{"kind": "transpose", "dims": [1, 0]}]),
        "weights.shape_mismatch", ("fc.b (4,)", "transpose"),
    ),
    "several tensors are not joined": (
        lambda data: rule(data, "blocks.{block}.mixer.heads.qkv.bias").update(steps=[]),
        "weights.shape_mismatch", ("(24,), (24,), (24,)", "(72,)"),
    ),
    "a split of several": (
        lambda data: rule(data, "blocks.{block}.mixer.heads.qkv.bias").update(steps=[SPLIT]),
        "weights.shape_mismatch", ("one tensor", 3),
    ),
    "tensors are used twice": (
        lambda data: data["rules"].append({"theirs": "embed.bias", "ours": "norm.bias"}),
        "weights.duplicate_tensor", ("norm.bias", "embed.bias"),
    ),
    "a rule has a placeholder on one side": (
        lambda data: data["rules"].append({"theirs": "cls", "ours": "blocks.{block}.mlp_nrom.weight"}),
        "config.bad_value", ("placeholders",),
    ),
    "a rule is for no tensor of the model": (
        lambda data: rule(data, "blocks.{block}.mlp_norm").update(ours="blocks.{block}.mlp_nrom"),
        "weights.bad_map", ("blocks.{block}.mlp_nrom",),
    ),
    "what is dropped is not there": (
        lambda data: data["drop"].append("shadows.*"), "weights.bad_map", ("shadows.*",),
    ),
    "an unknown placeholder": (
        lambda data: rule(data, "blocks.{block}.mlp_norm").update(theirs="enc.{layer}.ln_b"),
        "config.bad_value", ("enc.{layer}.ln_b", "rules.yaml"),
    ),
    "an unknown step": (
        lambda data: rule(data, "head.linear.bias").update(steps=[{"kind": "flip"}]),
        "config.unknown_name", ("flip", "rules.yaml"),
    ),
    "an unknown field": (lambda data: data.update(tensors=[]), "config.unknown_field", ("tensors", "rules.yaml")),
    "no model": (lambda data: data.pop("model"), "config.missing_value", ("rules.yaml", "model")),
    "other classes than the head has": (lambda data: data.update(classes=["ant"]), "config.bad_value", (1, 4)),
}  # fmt: skip


@pytest.mark.parametrize("case", MISFITS)
def test_rules_that_do_not_fit_are_refused_by_name(tmp_path: Path, case: str) -> None:
    change, code, values = MISFITS[case]
    file = rules_file(tmp_path / "rules", changed(change))
    with raises(code, *values):
        vitral.convert(put(tmp_path / "theirs", theirs()), tmp_path / "ours", map=file)
    assert not (tmp_path / "ours").exists()
