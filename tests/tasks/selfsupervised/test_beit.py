"""BEiT: a step as transformers takes it, the first losses, and what is hidden."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.variants import small
from tests.tasks.selfsupervised.transformers_steps import assert_same_step, load_step, load_weights
from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import Attention, Combined, Convolutions, Hybrid, Learned1d, Mlp, Patches, PreNorm, RelativeBias, Vit
from vitral.models.base import Grid
from vitral.models.block import LayerScale
from vitral.models.head import NoHead
from vitral.models.init import TruncatedNormal
from vitral.tasks.selfsupervised.beit import Beit, MaskedImageModeling, TargetConfig
from vitral.tasks.selfsupervised.projection import initialize_linear
from vitral.tasks.selfsupervised.schedules import ConstantMomentum
from vitral.tasks.selfsupervised.targets.codes import PatchCodes
from vitral.tasks.selfsupervised.targets.features import LayerFeatures, TeacherFeatures
from vitral.tasks.selfsupervised.targets.hog import Hog
from vitral.tasks.selfsupervised.targets.pixels import PatchPixels

ENCODER = r"beit\.layers\.(\d)\."
RULES = (
    (ENCODER + r"attention\.([qkv])_proj\.(.*)", r"model.blocks.\1.mixer.heads.{\2}.\3"),
    (ENCODER + r"attention\.o_proj\.(.*)", r"model.blocks.\1.mixer.project.\2"),
    (ENCODER + r"mlp\.fc1\.(.*)", r"model.blocks.\1.mlp.expand.\2"),
    (ENCODER + r"mlp\.fc2\.(.*)", r"model.blocks.\1.mlp.contract.\2"),
    (ENCODER + r"layernorm_before\.(.*)", r"model.blocks.\1.mixer_norm.\2"),
    (ENCODER + r"layernorm_after\.(.*)", r"model.blocks.\1.mlp_norm.\2"),
    (ENCODER + r"lambda_1", r"model.blocks.\1.mixer_branch.scale.factor"),
    (ENCODER + r"lambda_2", r"model.blocks.\1.mlp_branch.scale.factor"),
    (r"beit\.shared_position_bias\..*", "model.blocks.0.mixer.heads.relation.table"),
    (r"beit\.embeddings\.cls_token", "model.prefix.tokens"),
    (r"beit\.embeddings\.mask_token", "mask_token"),
    (r"beit\.embeddings\.position_embeddings", "model.position.table"),
    (r"beit\.embeddings\.patch_embeddings\.projection\.(.*)", r"model.stem.project.\1"),
    (r"layernorm\.(.*)", r"model.norm.\1"),
    (r"lm_head\.(.*)", r"predict.\1"),
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def built(target: TargetConfig, **fields: object) -> MaskedImageModeling:
    task = Beit(target=target, least=4).build(small(**fields).build(), 0, (), CENTERED)
    assert isinstance(task, MaskedImageModeling)
    return task


def test_a_step_equals_that_of_transformers() -> None:
    """Oracle: `BeitForMaskedImageModeling` of transformers, with the same patches hidden in both.

    The labels in the fixture were found by brute force from a codebook; as many patches are hidden in every image.
    """
    step = load_step("beit")
    model = Vit(
        image_size=Size(16, 16),
        width=16,
        depth=2,
        stem=Patches(patch=Size(4, 4)),
        position=Combined(added=Learned1d(), inside=RelativeBias(shared=True)),
        mixer=Attention(heads=2),
        block=PreNorm(scale=LayerScale(init=0.1)),
        mlp=Mlp(ratio=1.5, activation="gelu"),
        head=NoHead(),
        eps=1e-12,
    )
    task = Beit(target=PatchCodes(codes=12)).build(model.build(), 0, (), CENTERED).double()
    assert isinstance(task, MaskedImageModeling)
    load_weights(task, step, RULES, {"model.blocks.1.mixer.heads.relation.table", "target.codebook"})
    task.load_state_dict({"target.codebook": step.inputs["codebook"]}, strict=False)
    assert torch.equal(task.target(step.inputs["images"]), step.inputs["labels"])
    task.draw_hidden = lambda *_: step.inputs["hidden"]  # type: ignore[method-assign]
    loss = task(step.inputs["images"], torch.zeros(3), rng()).loss
    assert_same_step(task, loss, step, RULES)


@pytest.mark.parametrize(
    "target", [PatchPixels(), Hog(cell=4), TeacherFeatures(layers=2, momentum=ConstantMomentum(start=0.5))]
)
def test_a_step_with_another_target_equals_the_formula(target: TargetConfig) -> None:
    """Oracle: brute force, one hidden patch after another, in float64. Targets themselves have tests beside them."""
    torch.manual_seed(1)
    task = built(target, position=RelativeBias()).double()
    images = torch.randn(3, 3, 32, 48, dtype=torch.float64)
    hidden = task.draw_hidden(images, rng(2))
    learning = {name: weight for name, weight in task.named_parameters() if weight.requires_grad}
    loss = task(images, torch.zeros(3), rng(2)).loss
    grads = torch.autograd.grad(loss, list(learning.values()))
    expected = brute_force(task, images, hidden, target)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-8)
    for (name, _), found, wanted in zip(
        learning.items(), grads, torch.autograd.grad(expected, list(learning.values())), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8, msg=name)


def brute_force(task: MaskedImageModeling, images: Tensor, hidden: Tensor, target: TargetConfig) -> Tensor:
    model, truth = task.model, task.target(images)
    layout = model.layout(images)
    total = images.new_zeros(())
    for number, image in enumerate(images):
        patches = list(model.stem(image[None])[0])
        seen = [task.mask_token if hidden[number, place] else patch for place, patch in enumerate(patches)]
        tokens = model.prefix(torch.stack(seen)[None])
        for block in model.blocks:
            tokens = block(tokens, layout, layout.length())
        outputs = task.predict(model.norm(tokens))[0, 1:]
        errors = [outputs[place] - truth[number, place] for place in hidden[number].nonzero()[:, 0]]
        total = total + torch.stack([distance(each, target) for each in errors]).mean()
    return total / len(images)


def distance(error: Tensor, target: TargetConfig) -> Tensor:
    if not isinstance(target, TeacherFeatures):
        return (error**2).mean()
    size, beta = error.abs(), target.beta
    return torch.where(size < beta, size**2 / 2 / beta, size - beta / 2).mean()


def test_the_first_loss_with_8192_codes_is_9_16() -> None:
    """ln(8192) + 768 * 0.02^2 / 2 = 9.16, in the mean over heads: hidden patches have nearly the same outputs."""
    torch.manual_seed(0)
    task = built(PatchCodes(), width=768, depth=1, mixer=Attention(heads=12), init=TruncatedNormal())
    images, losses = torch.randn(2, 3, 32, 48), []
    for _ in range(40):
        initialize_linear(task.predict)
        with torch.no_grad():
            losses.append(task(images, torch.zeros(2), rng()).loss.item())
    assert np.mean(losses) == pytest.approx(9.16, abs=0.07)


def test_predicting_0_of_histograms_costs_a_ninth() -> None:
    task = built(Hog(cell=4))
    torch.nn.init.zeros_(task.predict.weight)
    loss = task(torch.randn(4, 3, 32, 48), torch.zeros(4), rng()).loss
    assert loss.item() == pytest.approx(1 / 9, abs=1e-6)


def test_pixels_of_hidden_patches_leave_no_trace_in_what_is_predicted() -> None:
    torch.manual_seed(2)
    task, images = built(PatchPixels()), torch.randn(2, 3, 32, 48)
    hidden = task.draw_hidden(images, rng(1))
    pixels = hidden.view(2, 4, 6).repeat_interleave(8, 1).repeat_interleave(8, 2)[:, None].expand_as(images)
    seen = []
    task.predict.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for each in (images, torch.where(pixels, torch.randn_like(images), images)):
        task(each, torch.zeros(2), rng(1))
    assert torch.equal(*seen)


def test_75_of_196_patches_are_hidden() -> None:
    assert Beit().hidden_patches(Grid(14, 14)) == 75


def test_the_teacher_follows_after_a_step_and_is_part_of_the_state() -> None:
    task = built(TeacherFeatures(layers=1, momentum=ConstantMomentum(start=0.75)))
    assert isinstance(task.target, LayerFeatures)
    taught = task.get_parameter("target.teacher.model.stem.project.weight")
    before = taught.clone()
    with torch.no_grad():
        task.get_parameter("model.stem.project.weight").add_(1.0)
    task.end_step(0.5)
    torch.testing.assert_close(taught, before + 0.25)
    assert "target.teacher.model.stem.project.weight" in task.state_dict()
    assert not any(weight.requires_grad for weight in task.target.parameters())


def test_pixels_and_codes_are_drawn_and_other_targets_are_not() -> None:
    images = torch.rand(2, 3, 32, 48) * 2 - 1
    for target in (PatchPixels(), PatchCodes(codes=16)):
        pictures = built(target).eval().reconstruct(images)
        assert pictures is not None
        changed = (pictures.predictions != pictures.images).any(dim=1)
        assert torch.equal(changed, (pictures.inputs != pictures.images).any(dim=1) & changed)
        assert changed.any()
    others: tuple[TargetConfig, ...] = (Hog(), TeacherFeatures(layers=1))
    for other in others:
        assert built(other).eval().reconstruct(images) is None


@pytest.mark.parametrize(
    ("task", "fields", "code"),
    [
        (Beit(), {"stem": Convolutions(widths=(8, 12, 16))}, "config.unsupported"),
        (Beit(), {"stem": Hybrid(layers=(1, 1), root=32)}, "config.unsupported"),
        (Beit(ratio=0.01), {}, "config.out_of_range"),
        (Beit(target=Hog(cell=5)), {}, "config.indivisible"),
        (Beit(target=TeacherFeatures(layers=3)), {}, "config.out_of_range"),
    ],
)
def test_models_that_do_not_fit_are_refused(task: Beit, fields: dict[str, object], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task.check(small(**fields))
    assert caught.value.code == code
