"""Our models in timm's words."""

import json
from pathlib import Path

import pytest
import torch

from tests.weights.formats.files import fixture, rewritten, unlike
from tests.weights.formats.timm.test_architectures import REFUSED, shallow
from tests.weights.formats.timm.test_reader import LABELS
from vitral.core.config import override
from vitral.models.vit import Vit
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.rules import export_tensors, import_tensors
from vitral.weights.formats.timm import Timm
from vitral.weights.formats.timm.architectures import architectures
from vitral.weights.formats.timm.arguments import Arguments
from vitral.weights.formats.timm.candidates import answering
from vitral.weights.formats.timm.resolve import MODELS
from vitral.weights.formats.timm.writer import WrittenModel, timm_form
from vitral.weights.load import load

TINY = ("width=16", "depth=2", "mixer.heads=2", "image_size=32", "stem.patch=8", "head.num_classes=3")
WRITTEN = [name for name in architectures() if name not in REFUSED and not name.startswith("naflexvit")]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ("stem.norm=both", "stem.norm"),
        ("stem.bias=false", "stem.bias"),
        ("position=rope2d position.base=7 tokens.cls=false pool=mean eps=1e-3", "eps"),
        ("block=post", "block"),
        ("mixer=local mixer.rows=4 mixer.columns=4", "mixer"),
        ("mixer.head_width=6", "mixer.head_width"),
        ("mixer.heads=1 mixer.project=false", "mixer.project"),
        ("pool=attention pool.heads=2 block=parallel", "block"),
        ("pool=attention mlp=swiglu", "mlp"),
        ("pool=distilled tokens.registers=2", "pool"),
        ("head=tanh", "head"),
    ],
)
def test_a_part_without_counterpart_is_named(settings: str, field: str) -> None:
    assert not unlike(Timm())
    assert field in unlike(Timm(), *settings.split())


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("timm_deit", "deit_base_distilled_patch16_224"),
        ("timm_fc_norm", "vit_base_patch16_224"),
        ("timm_clip", "vit_base_patch16_clip_224"),  # whose norms have another eps, which no argument gives
        ("timm_swiglu", "vit_giant_patch14_dinov2"),  # whose MLP is gated, which no argument gives
    ],
)
def test_what_is_written_is_described_as_timm_wants_it(tmp_path: Path, name: str, architecture: str) -> None:
    loaded = load(fixture(name, tmp_path / "a", notes=True)[0])
    tensors = rewritten(loaded, Timm(), tmp_path / "b")
    written = json.loads((tmp_path / "b/config.json").read_text())
    assert written["architecture"] == architecture
    assert written["label_names"] == list(LABELS)
    hidden = tensors["blocks.0.mlp.fc1.bias"].numel()
    assert int(40 * written["model_args"]["mlp_ratio"]) == hidden
    assert all(value is not None for value in written["model_args"].values())  # timm takes none for not given


@pytest.mark.parametrize("part", range(4))
def test_every_architecture_can_be_written_and_read_again(part: int) -> None:
    for name in WRITTEN[part::4]:
        model = shallow(name).model
        form = timm_form(model.to_json())
        assert isinstance(form, WrittenModel), (name, form)
        arch = architectures()[form.architecture]
        again = MODELS[arch.kind](Arguments({**arch.arguments, **form.arguments})).model
        assert plain(again) == plain(model), name


def test_one_head_on_both_tokens_is_written_as_two(tmp_path: Path) -> None:
    model = override(Vit(), [*TINY, "mlp.activation=gelu", "pool=distilled", "tokens.registers=1"])  # an older bundle's
    form = timm_form(model.to_json())
    assert isinstance(form, WrittenModel), form
    own = {name: torch.randn(tensor.shape) for name, tensor in model.build_empty().state_dict().items()}
    theirs = export_tensors(form.layout.rules(model, own), own)
    assert torch.equal(theirs["head.weight"], 2 * own["head.linear.weight"][:, :16])
    assert torch.equal(theirs["head_dist.weight"], 2 * own["head.linear.weight"][:, 16:])


def plain(model: Vit) -> dict[str, object]:
    return dict(answering(Checkpoint(Path("a"), {}, {}, {}), model))


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "block=residual_post",
        "block=parallel block.scale=layer_scale",
        "block=multi_branch block.scale=layer_scale",
        "position=rope_axial tokens.registers=3 mlp=swiglu",
        "position=rope_mixed pool=mean",
        "position=relative_bias pool=mean pool.norm=after mlp.activation=gelu",
        "position=relative_mlp tokens.cls=false pool=mean mlp.activation=gelu",
        "position=none pool=mean_all",
        "stem.remainder=pad mixer.qk_norm=true tokens.registers=2",
    ],
)
def test_tensors_come_back_to_the_last_bit(settings: str) -> None:
    model = override(Vit(), [*TINY, "mlp.activation=gelu", *settings.split()])
    form = timm_form(model.to_json())
    assert isinstance(form, WrittenModel), form
    own = {name: torch.randn(tensor.shape) for name, tensor in model.build_empty().state_dict().items()}
    if form.layout.qkv == "fused_without_k_bias":
        for name in [name for name in own if name.endswith("qkv.bias")]:
            own[name][16:32] = 0
    rules = form.layout.rules(model, own)
    theirs = export_tensors(rules, own)
    again = import_tensors(rules, own, theirs, "", "")
    assert again.keys() == own.keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in again.items())
