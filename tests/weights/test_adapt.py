"""Old weights in a new model."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.errors import raises
from tests.models.variants import VARIANTS, VITS, small
from tests.training.states import identical
from tests.weights.bundles import loaded, square, tensors_of
from vitral.core.config import Size, override
from vitral.models import (
    Attention,
    AttentionPool,
    BigVision,
    Learned1d,
    Learned2d,
    LinearHead,
    MeanPool,
    Mlp,
    NoHead,
    Normal,
    Patches,
    PreNorm,
    Relative2d,
    Resnet,
    Rope2d,
    SinCos2d,
    TanhHead,
    TokenMlp,
    Tokens,
    Vit,
)
from vitral.weights.adapt import FREE_FIELDS, load_pretrained

OLD = small()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_all_but_the_head_is_taken_to_the_bit(config: Vit | Resnet) -> None:
    model = override(config, ["head=linear", "head.num_classes=7"]).build()
    head = "a new head of 7 classes" if isinstance(config.head, NoHead) else "head of 4 classes dropped, a new one of 7"
    fields = {"task": "masked_patches"} if isinstance(config.head, NoHead) else {}
    told = load_pretrained(model, loaded(config, **fields))
    assert told[0] == f"{head} starts at zero"
    taken = {name: weight for name, weight in model.state_dict().items() if not name.startswith("head.")}
    if fields:  # of masked patches the pool is not taken, but these models' pools have no weights
        assert told[1:] == ()
    expected = {name: weight for name, weight in tensors_of(config).items() if not name.startswith("head.")}
    assert identical({"": taken}, {"": expected})
    images = torch.randn(2, config.channels, *config.image_size)
    assert torch.equal(model(images), torch.zeros(2, 7))


@pytest.mark.parametrize("head", [LinearHead(num_classes=3, bias=-6.9), TanhHead(num_classes=3, bias=-6.9)])
def test_whatever_the_model_begins_with_the_new_answers_start_at_the_bias(head: LinearHead | TanhHead) -> None:
    model = small(head=head, init=Normal()).build()
    (told,) = load_pretrained(model, loaded(OLD))
    assert told == "head of 4 classes dropped, a new one of 3 starts at zero, its bias at -6.9"
    assert torch.equal(model(torch.randn(2, 3, 32, 48)), torch.full((2, 3), -6.9))


def test_a_head_of_the_same_classes_is_dropped_too_and_none_is_put_where_there_is_none() -> None:
    assert load_pretrained(small().build(), loaded(OLD)) == (
        "head of 4 classes dropped, a new one of 4 starts at zero",
    )
    assert load_pretrained(small(head=NoHead()).build(), loaded(OLD)) == ("head of 4 classes dropped",)
    assert load_pretrained(small(head=NoHead()).build(), loaded(small(head=NoHead()))) == ()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [name for name in VITS if "token_mlp" not in name and "local" not in name])
def test_a_model_of_another_size_answers_as_the_old_one_does_at_that_size(name: str) -> None:
    """The old model resamples its positions whenever it sees another size, which is tested where it is built."""
    old, new = VITS[name], override(VITS[name], ["image_size=48x80"])
    source, model = loaded(old), new.build()
    told = load_pretrained(model, source)
    images = torch.randn(2, old.channels, 48, 80)
    with torch.inference_mode():
        assert torch.allclose(model.eval().forward_pooled(images), source.model.forward_pooled(images), atol=1e-5)
    assert model.config.image_size == (48, 80)
    changed = any(weight.shape != tensors_of(old)[name].shape for name, weight in model.state_dict().items())
    grids = f"from {old.layout(old.image_size).grid} to {new.layout(new.image_size).grid}"
    assert (f"positions resampled {grids}" in told) == changed


def test_learned_rows_are_stretched_as_an_image_with_its_corners_aligned() -> None:
    source, model = loaded(OLD), small(image_size=square(64)).build()
    assert "positions resampled from 4x6 to 8x8" in load_pretrained(model, source)
    table: Tensor = source.model.state_dict()["position.table"]  # (1, 1 + 24, D)
    image = table[:, 1:].unflatten(1, (4, 6)).permute(0, 3, 1, 2)  # (1, D, 4, 6)
    stretched = F.interpolate(image, size=(8, 8), mode="bilinear", align_corners=True).flatten(2).mT  # (1, 64, D)
    found = model.state_dict()["position.table"]
    assert torch.equal(found, torch.cat([table[:, :1], stretched], dim=1))
    assert torch.equal(found[0, [1, 8, 57, 64]], table[0, [1, 6, 19, 24]])  # the corners stay


def test_an_image_of_the_same_grid_is_not_resampled() -> None:
    model = small(image_size=Size(32, 48), head=LinearHead(num_classes=2)).build()
    assert len(load_pretrained(model, loaded(OLD))) == 1
    assert torch.equal(model.state_dict()["position.table"], tensors_of(OLD)["position.table"])


def test_masked_patches_leave_the_pool_that_they_did_not_train() -> None:
    old = small(head=NoHead(), pool=AttentionPool(heads=2))
    model = small(pool=AttentionPool(heads=4)).build()
    fresh = {name: weight.clone() for name, weight in model.state_dict().items() if name.startswith("pool.")}
    assert load_pretrained(model, loaded(old)) == (
        "a new head of 4 classes starts at zero",
        "the pool, which masked patches do not train, is newly initialized",
    )
    state = dict(model.state_dict())
    assert len(fresh) > 5
    assert identical({"": {name: state[name] for name in fresh}}, {"": fresh})
    assert torch.equal(state["norm.weight"], tensors_of(old)["norm.weight"])
    mean = small(pool=MeanPool()).build()
    assert load_pretrained(mean, loaded(old)) == ("a new head of 4 classes starts at zero",)


def test_what_a_new_run_may_choose_is_free() -> None:
    chosen = small(
        any_size=False,
        init=BigVision(),
        tokens=Tokens(dropout=0.1),
        position=Learned1d(resampling="bicubic"),
        block=PreNorm(drop_path_rate=0.1),
        mixer=Attention(heads=2, dropout=0.1, attention_dropout=0.1),
        mlp=Mlp(dropout=0.1),
    )
    assert len(load_pretrained(chosen.build(), loaded(OLD))) == 1


def test_every_free_field_exists() -> None:
    def has(path: str) -> bool:
        configs: list[Any] = list(VITS.values())
        *way, last = path.split(".")
        for name in way:
            configs = [getattr(config, name) for config in configs if hasattr(config, name)]
        return any(last in type(config).model_fields for config in configs)

    assert [path for path in FREE_FIELDS if not has(path)] == []


MISMATCH = "weights.config_mismatch"
DIFFERENT: dict[str, tuple[Vit | Resnet, str, tuple[object, ...]]] = {
    "heads": (small(mixer=Attention(heads=4)), MISMATCH, ("mixer.heads", 4, 2)),
    "gelu": (small(mlp=Mlp(activation="gelu")), MISMATCH, ("mlp.activation", "gelu", "gelu_tanh")),
    "eps": (small(eps=1e-12), MISMATCH, ("eps", 1e-12, 1e-06)),
    "pool": (small(pool=MeanPool()), MISMATCH, ("pool.kind", "mean", "cls")),
    "position without weights": (small(position=SinCos2d()), MISMATCH, ("position.kind", "sincos2d", "learned1d")),
    "position": (small(position=Rope2d()), MISMATCH, ("position.kind", "rope2d", "position.table")),
    "another table": (small(position=Learned2d()), MISMATCH, ("position.x", "position.y")),
    "relative": (small(position=Relative2d()), MISMATCH, ("blocks.0.mixer.heads.relation.table",)),
    "depth": (small(depth=3), MISMATCH, ("depth", 3, 2, "blocks.2.")),
    "width": (
        small(width=64),
        MISMATCH,
        ("width", 64, 32, "stem.project.weight", "(32, 192)", "(64, 192)"),
    ),
    "patch": (
        small(stem=Patches(patch=Size(4, 4), norm="both")),
        MISMATCH,
        ("stem.patch", "[4, 4]", "[8, 8]", "stem.norm"),
    ),
    "another model": (Resnet(layers=(1, 1), root=32, image_size=Size(32, 48)), MISMATCH, ("kind", "resnet", "vit")),
}


@pytest.mark.parametrize(("config", "code", "values"), DIFFERENT.values(), ids=DIFFERENT)
def test_all_else_must_be_the_same(config: Vit | Resnet, code: str, values: tuple[object, ...]) -> None:
    model = config.build()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with raises(code, *values):
        load_pretrained(model, loaded(OLD))
    assert identical({"": dict(model.state_dict())}, {"": before})


def test_a_mixer_made_for_so_many_patches_takes_no_other_size() -> None:
    old = small(mixer=TokenMlp(hidden=24))
    with raises("weights.shape_mismatch", "blocks.0.mixer."):
        load_pretrained(override(old, ["image_size=48x80"]).build(), loaded(old))
