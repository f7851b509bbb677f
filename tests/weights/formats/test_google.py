"""Google's .npz files: the published names and shapes, and what flax answers with such weights."""

import re
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import vitral
from tests.errors import raises
from tests.models.references import FOLDER, reference
from tests.weights.formats.files import differences, relative_errors
from vitral.core.config import Size, override, parse_settings
from vitral.data.transforms.crop import Resize
from vitral.data.transforms.preprocessing import CENTERED, Preprocessing
from vitral.models.embed import Hybrid
from vitral.models.head import NoHead, ProjectionHead, TanhHead
from vitral.models.mlp import Mlp
from vitral.models.pool import AttentionPool, ClassPool, MeanPool, PoolConfig
from vitral.models.position import Learned1d, PositionConfig, SinCos2d
from vitral.models.registry import model_config
from vitral.models.vit import Vit
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.google import BigVision, Google
from vitral.weights.formats.npz import read_npz, write_npz
from vitral.weights.formats.registry import detect_format
from vitral.weights.formats.rules import expected_shapes

ORIGINALS = ("google_vit", "google_tanh", "google_gap", "google_hybrid", "google_root")
NEWER = ("big_vision_cls", "big_vision_map", "big_vision_sines")
SINES = {"big_vision_sines": ("image_size=16",)}  # fixed positions tell no size
Q = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/query/kernel"
K = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/key/kernel"
KB = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/key/bias"

Weights = dict[str, Tensor]


def put(path: Path, tensors: Weights) -> Path:
    path.write_bytes(b"".join(write_npz(tensors)))
    return path


def weights(name: str) -> Weights:
    return read_npz(FOLDER / f"{name}.npz")


def answers(name: str) -> Weights:
    return load_file(FOLDER / f"{name}.safetensors")


def published(width: int, heads: int, depth: int, patch: int, rows: int, classes: int) -> dict[str, tuple[int, ...]]:
    """The names and shapes of PAPER.md, section 3."""
    each, hidden = width // heads, 4 * width
    found: dict[str, tuple[int, ...]] = {
        "cls": (1, 1, width),
        "Transformer/posembed_input/pos_embedding": (1, rows, width),
    }
    found |= {"embedding/kernel": (patch, patch, 3, width), "embedding/bias": (width,)}
    found |= {"head/kernel": (width, classes), "head/bias": (classes,)}
    norms = ["Transformer/encoder_norm"]
    for block in (f"Transformer/encoderblock_{layer}" for layer in range(depth)):
        norms += [f"{block}/LayerNorm_0", f"{block}/LayerNorm_2"]
        attention, mlp = f"{block}/MultiHeadDotProductAttention_1", f"{block}/MlpBlock_3"
        for part in ("query", "key", "value"):
            found |= {f"{attention}/{part}/kernel": (width, heads, each), f"{attention}/{part}/bias": (heads, each)}
        found |= {f"{attention}/out/kernel": (heads, each, width), f"{attention}/out/bias": (width,)}
        found |= {f"{mlp}/Dense_0/kernel": (width, hidden), f"{mlp}/Dense_0/bias": (hidden,)}
        found |= {f"{mlp}/Dense_1/kernel": (hidden, width), f"{mlp}/Dense_1/bias": (width,)}
    return found | {f"{norm}/{part}": (width,) for norm in norms for part in ("scale", "bias")}


@pytest.mark.parametrize("name", [*ORIGINALS, *NEWER])
def test_tokens_and_logits_are_flaxs_at_both_sizes(name: str) -> None:
    model = vitral.load(FOLDER / f"{name}.npz", settings=parse_settings([*SINES.get(name, ())])).model
    expected = answers(name)
    assert {"images", "tokens", "logits", "images_large", "tokens_large", "logits_large"} == expected.keys()
    assert max(differences(model, expected)) < 1e-5
    assert all(tensor.is_contiguous() for tensor in model.state_dict().values())
    exact = {key: tensor.double() for key, tensor in expected.items()}
    assert max(differences(model.double(), exact)) < 1e-6


@pytest.mark.parametrize("setting", ["eps=1e-5", "mlp.activation=gelu", "position.resampling=bicubic"])
def test_the_answers_would_tell_another_constant(setting: str) -> None:
    found = vitral.load(FOLDER / "google_vit.npz")
    other = override(found.bundle.model, [setting]).build_empty()
    other.load_weights(found.model.state_dict())
    assert max(differences(other.eval(), answers("google_vit"))) > 1e-4


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["google_vit", "big_vision_map"])
@pytest.mark.parametrize("prefix", ["opt/target/", "params/", "params/img/", "img/"])
def test_names_may_stand_behind_a_prefix(name: str, prefix: str, tmp_path: Path) -> None:
    renamed = {prefix + key: tensor for key, tensor in weights(name).items()}
    path = put(tmp_path / "a.npz", renamed | {"opt/state/step": torch.tensor(7)})
    loaded = vitral.load(path)
    assert max(differences(loaded.model, answers(name))) < 1e-5
    assert loaded.bundle.model == vitral.load(FOLDER / f"{name}.npz").bundle.model


def test_what_does_not_belong_to_the_model_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    both = {f"params/img/{key}": tensor for key, tensor in weights("big_vision_map").items()}
    both |= {"params/txt/head/kernel": torch.ones(3, 3), "params/t": torch.ones(1)}
    with caplog.at_level("INFO", "vitral"):
        loaded = vitral.load(put(tmp_path / "a.npz", both))
    assert isinstance(loaded.bundle.model, Vit)
    assert loaded.bundle.model.head == ProjectionHead(width=5, bias=True)  # to the embedding that both towers share
    assert loaded.bundle.task == "features"
    assert "ignored params/txt/head/kernel: belongs to another tower" in caplog.messages
    assert "ignored params/t: belongs to the training, not to the model" in caplog.messages


@pytest.mark.parametrize("name", ["big_vision_siglip", "big_vision_lit", "big_vision_plain"])
def test_a_model_answers_as_big_vision_s_own_code(name: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"image_size": 12} if name == "big_vision_plain" else {}
    with caplog.at_level("INFO", "vitral"):
        loaded = vitral.load(FOLDER / "layouts" / f"{name}.npz", settings=settings)
    model = loaded.bundle.model
    assert isinstance(model, Vit)
    expected = {"siglip": ("attention", "none"), "lit": ("cls", "projection"), "plain": ("mean", "tanh")}
    assert (model.pool.kind, model.head.kind) == expected[name.removeprefix("big_vision_")]
    if name != "big_vision_plain":
        assert "ignored params/b and 1 more: belongs to the training, not to the model" in caplog.messages
    assert max(relative_errors(loaded.model, reference(f"layouts/{name}").answers)) <= 1e-6


def test_the_pool_of_the_first_files_has_no_name_of_its_own(tmp_path: Path) -> None:
    inline = {key.removeprefix("MAPHead_0/"): tensor for key, tensor in weights("big_vision_map").items()}
    loaded = vitral.load(put(tmp_path / "a.npz", inline))
    assert max(differences(loaded.model, answers("big_vision_map"))) < 1e-5


def test_naflex_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "a.npz", weights("big_vision_map") | {"embedding/kernel": torch.zeros(48, 36)})
    with raises("weights.unsupported", "embedding/kernel", "NaFlex"):
        vitral.load(path)


def test_classes_without_names_are_numbered_and_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "vitral"):
        bundle = vitral.load(FOLDER / "google_vit.npz").bundle
    assert bundle.classes == ("0", "1", "2", "3", "4")
    assert "assumed: its 5 classes have no names: numbered" in caplog.messages
    assert bundle.preprocessing == Preprocessing(
        image_size=Size(16, 16), crop=Resize(filter="bilinear"), normalize=CENTERED
    ).with_decoding(jpeg_scale="full")


@pytest.mark.parametrize(
    ("name", "position", "pool"),
    [
        ("google_vit", Learned1d(), ClassPool()),
        ("google_gap", Learned1d(cls=False), MeanPool()),
        ("big_vision_cls", Learned1d(cls=False), ClassPool()),
        ("big_vision_map", Learned1d(cls=False), AttentionPool()),
        ("big_vision_sines", SinCos2d(), MeanPool()),
    ],
)
def test_the_model_has_googles_constants(name: str, position: PositionConfig, pool: PoolConfig) -> None:
    model = vitral.load(FOLDER / f"{name}.npz").bundle.model
    assert isinstance(model, Vit)
    assert (model.position, model.pool, model.eps) == (position, pool, 1e-6)
    assert model.mlp == Mlp(ratio=60 / 36)


def test_a_file_without_a_head_is_a_backbone(tmp_path: Path) -> None:
    bare = {key: tensor for key, tensor in weights("google_tanh").items() if not key.startswith("head/")}
    loaded = vitral.load(put(tmp_path / "a.npz", bare))
    assert loaded.bundle.model.head == NoHead()
    assert max(differences(loaded.model, {k: v for k, v in answers("google_tanh").items() if "logits" not in k})) < 1e-5


def test_a_hidden_layer_of_its_own_width_is_kept() -> None:
    assert vitral.load(FOLDER / "google_tanh.npz").bundle.model.head == TanhHead(num_classes=5, hidden=28)
    assert vitral.load(FOLDER / "big_vision_sines.npz").bundle.model.head == TanhHead(num_classes=5)


def stacked(found: Weights) -> Weights:
    """All layers of a part in one tensor, as big_vision's scan keeps them."""
    first = "Transformer/encoderblock_0/"
    parts = [key.removeprefix(first) for key in found if key.startswith(first)]
    rest = {key: tensor for key, tensor in found.items() if "encoderblock_" not in key}
    blocks = ["Transformer/encoderblock_0", "Transformer/encoderblock_1"]
    return rest | {
        f"Transformer/encoderblock/{part}": torch.stack([found[f"{b}/{part}"] for b in blocks]) for part in parts
    }


def old_table(found: Weights) -> Weights:
    return {key.replace("pos_embedding", "Transformer/pos_embedding"): tensor for key, tensor in found.items()}


def old_norms(found: Weights) -> Weights:
    """Norms of the shape that the paper's hybrids have."""
    norm = re.compile(r"(.*/)?gn\w+/(scale|bias)")
    return {key: tensor[None, None, None] if norm.fullmatch(key) else tensor for key, tensor in found.items()}


@pytest.mark.parametrize(
    ("name", "change"), [("big_vision_cls", stacked), ("big_vision_map", old_table), ("google_hybrid", old_norms)]
)
def test_other_ways_to_keep_the_same_are_read(name: str, change: Callable[[Weights], Weights], tmp_path: Path) -> None:
    changed = change(weights(name))
    assert {key: tensor.shape for key, tensor in changed.items()} != {k: t.shape for k, t in weights(name).items()}
    assert max(differences(vitral.load(put(tmp_path / "a.npz", changed)).model, answers(name))) < 1e-5


def test_bfloat16_is_read_as_float32(tmp_path: Path) -> None:
    rounded = {key: tensor.bfloat16() for key, tensor in weights("google_vit").items()}
    model = vitral.load(put(tmp_path / "a.npz", rounded)).model
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    assert 1e-4 < max(differences(model, answers("google_vit"))) < 0.1


def test_a_published_file_is_what_it_is_called(tmp_path: Path) -> None:
    names = published(width=768, heads=12, depth=2, patch=16, rows=577, classes=1000)
    path = put(tmp_path / "B_16.npz", {name: torch.zeros(()).expand(shape) for name, shape in names.items()})
    bundle = vitral.load(path).bundle
    assert bundle.model == model_config("B/16", depth=2, image_size=384)
    assert bundle.preprocessing == Preprocessing(image_size=Size(384, 384)).with_decoding(jpeg_scale="full")


@pytest.mark.parametrize(
    ("name", "count"),
    {
        "Ti/16": 5_717_416,
        "S/32": 22_878_952,
        "B/16": 86_567_656,
        "L/16": 304_326_632,
        "H/14": 632_045_800,
        "R+Ti/16": 6_337_704,
        "R26+S/32": 36_431_912,
        "R50+B/16": 98_659_112,
        "R50+L/32": 328_994_856,
    }.items(),
)
def test_a_file_has_as_many_numbers_as_google_counts(name: str, count: int) -> None:
    model = model_config(name)
    assert isinstance(model, Vit)
    own = model.build_empty().state_dict()
    found = expected_shapes(Google().rules(model, own), own)
    assert sum(prod(shape) for shape in found.values()) == count
    if not isinstance(model.stem, Hybrid) and model.width < 1024:
        rows = 1 + (224 // model.stem.patch.height) ** 2
        heads = model.width // 64
        assert found == published(model.width, heads, model.depth, model.stem.patch.height, rows, 1000)


def test_an_oblong_table_needs_the_image_size(tmp_path: Path) -> None:
    table = "Transformer/posembed_input/pos_embedding"
    path = put(tmp_path / "a.npz", weights("google_gap") | {table: torch.zeros(1, 12, 36)})
    with raises("weights.missing_setting", 12, "image_size=HEIGHTxWIDTH"):
        vitral.load(path)
    assert vitral.load(path, settings={"image_size": "12x16"}).bundle.model.image_size == Size(12, 16)


MISSING, SHAPE = "weights.missing_tensor", "weights.shape_mismatch"
WRONG: dict[str, tuple[Callable[[Weights], object], str, tuple[object, ...]]] = {
    "missing": (lambda found: found.pop(KB), MISSING, (KB,)),
    "first missing": (lambda found: found.pop(Q.replace("_1/M", "_0/M")), MISSING, ("query/kernel",)),
    "no positions": (
        lambda found: found.pop("Transformer/posembed_input/pos_embedding"),
        MISSING,
        ("pos_embedding",),
    ),
    "not expected": (lambda found: found.update(more=torch.ones(2)), "weights.unexpected_tensor", ("more",)),
    "turned": (
        lambda found: found.update({K: found[K].permute(2, 1, 0)}),
        SHAPE,
        (K, "(12, 3, 36)", "(36, 3, 12)"),
    ),
    "turned at first": (
        lambda found: found.update({key: found[key].permute(1, 2, 0) for key in found if key.endswith("query/kernel")}),
        SHAPE,
        ("query/kernel", "(3, 12, 36)"),
    ),
    "other heads": (
        lambda found: found.update({K: found[K].reshape(36, 2, 18), KB: found[KB].reshape(2, 18)}),
        SHAPE,
        (KB, "(2, 18)", "(3, 12)"),
    ),
    "flat": (
        lambda found: found.update({"embedding/kernel": torch.ones(48, 36)}),
        SHAPE,
        ("embedding/kernel", "(48, 36)"),
    ),
    "whole numbers": (lambda found: found.update({K: found[K].long()}), "weights.wrong_type", (K, "int64")),
    "not finite": (lambda found: found[K].fill_(torch.nan), "weights.not_finite", (K,)),
    "so many layers": (
        lambda found: found.update({"Transformer/encoderblock_99999/x": torch.ones(1)}),
        "weights.bad_config",
        ("depth", 1000),
    ),
}


@pytest.mark.parametrize(("damage", "code", "values"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_by_its_own_name(
    damage: Callable[[Weights], object], code: str, values: tuple[object, ...], tmp_path: Path
) -> None:
    found = weights("google_vit")
    damage(found)
    with raises(code, tmp_path / "a.npz", *values):
        vitral.load(put(tmp_path / "a.npz", found))


@pytest.mark.parametrize("name", [*ORIGINALS, *NEWER])
def test_one_layout_alone_claims_a_file(name: str) -> None:
    ckpt = Checkpoint(Path(f"{name}.npz"), weights(name), {}, {})
    assert detect_format(ckpt).name == ("google" if name in ORIGINALS else "big_vision")


@pytest.mark.parametrize("kind", [Google(), BigVision()], ids=["google", "big_vision"])
def test_files_of_others_are_not_claimed(kind: Google) -> None:
    for path in sorted(FOLDER.glob("*.safetensors")):
        found = {key.removeprefix("weights/"): tensor for key, tensor in load_file(path).items()}
        assert not kind.matches(Checkpoint(path, found, {}, {})), path
