"""iGPT: a step as transformers takes it, the first loss, what a pixel is predicted from, and completed images."""

from math import log

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tasks.selfsupervised.transformers_steps import Step, assert_same_step, load_step, load_weights
from vitral.core.config import Size, override
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import Causal, MeanPool, Mlp, NoHead, Palette, Resnet, RmsNorm
from vitral.models.base import Grid
from vitral.models.vit import Vit
from vitral.tasks.selfsupervised.igpt import Igpt, Masked, PixelModeling

BLOCK = r"transformer\.h\.(\d)\."
RULES = (
    (BLOCK + r"attn\.c_attn\.(.*)", r"model.blocks.\1.mixer.heads.qkv.\2"),
    (BLOCK + r"attn\.c_proj\.(.*)", r"model.blocks.\1.mixer.project.\2"),
    (BLOCK + r"mlp\.c_fc\.(.*)", r"model.blocks.\1.mlp.expand.\2"),
    (BLOCK + r"mlp\.c_proj\.(.*)", r"model.blocks.\1.mlp.contract.\2"),
    (BLOCK + r"ln_1\.(.*)", r"model.blocks.\1.mixer_norm.\2"),
    (BLOCK + r"ln_2\.(.*)", r"model.blocks.\1.mlp_norm.\2"),
    (r"transformer\.ln_f\.(.*)", r"model.norm.\1"),
    (r"transformer\.wte\.start", "model.prefix.tokens"),
    (r"transformer\.wte\.colors", "model.stem.embed.weight"),
    (r"transformer\.wpe\.weight", "model.position.table"),
    (r"lm_head\.weight", "predict.weight"),
)
MODEL = Vit(
    image_size=Size(6, 6),
    width=16,
    depth=2,
    stem=Palette(colors=12),
    mixer=Causal(heads=2),
    mlp=Mlp(ratio=1.5, activation="quick_gelu"),
    norm=RmsNorm(),
    eps=1e-5,
    pool=MeanPool(),
    head=NoHead(),
)
NO_LABELS = torch.zeros(3)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def built(*settings: str, task: Igpt = Igpt()) -> PixelModeling:  # noqa: B008, a constant
    """A task whose outputs are not zero."""
    torch.manual_seed(0)
    built = task.build(override(MODEL, settings).build(), 0, (), CENTERED)
    assert isinstance(built, PixelModeling)
    with torch.no_grad():
        for weight in built.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return built


def masked(ratio: float = 0.3) -> PixelModeling:
    return built("mixer=attention", task=Igpt(objective=Masked(ratio=ratio)))


def photos(count: int = 3) -> Tensor:
    return torch.rand(count, 3, 6, 6) * 2 - 1


def as_here(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of transformers with matrices (out, in), and the embedding of the start as one of its own."""
    found = {name: each.mT if ".c_" in name and each.ndim == 2 else each for name, each in tensors.items()}
    table = found.pop("transformer.wte.weight")
    return found | {"transformer.wte.colors": table[:-1], "transformer.wte.start": table[-1:]}


def test_a_step_equals_that_of_transformers() -> None:
    """Oracle: `ImageGPTForCausalImageModeling` of transformers on sequences that begin with its start token.

    The codes in the fixture were found by brute force from a palette.
    """
    loaded = load_step("igpt")
    step = Step(loaded.inputs, as_here(loaded.weights), as_here(loaded.grads), loaded.loss)
    task = built().double()
    load_weights(task, step, RULES, {"model.stem.palette"})
    task.load_state_dict({"model.stem.palette": step.inputs["palette"]}, strict=False)
    assert torch.equal(task.stem.codes(step.inputs["images"]), step.inputs["codes"])
    assert_same_step(task, task(step.inputs["images"], NO_LABELS, rng()).loss, step, RULES)


def test_a_step_that_hides_pixels_equals_the_formula() -> None:
    """Oracle: brute force in float64, one image and one hidden pixel after another."""
    task = masked().double()
    model, images = task.model, photos().double()
    hidden, total = task.draw_hidden(images, rng(3)), images.new_zeros(())
    layout = model.layout(images)
    for codes, chosen in zip(task.stem.codes(images), hidden, strict=True):
        pixels = [
            0 * task.stem.embed.weight[0] if chosen[place] else task.stem.embed.weight[codes[place]]
            for place in range(36)
        ]
        tokens = model.position(model.prefix(torch.stack(pixels)[None]), layout, 0)
        for block in model.blocks:
            tokens = block(tokens, layout, layout.length())
        logits = task.predict(model.norm(tokens))[0, 1:]
        logs = [logits[place].softmax(dim=0)[codes[place]].log() for place in chosen.nonzero()[:, 0]]
        total = total - torch.stack(logs).mean() / len(images)
    learning = {name: weight for name, weight in task.named_parameters() if weight.requires_grad}
    loss = task(images, NO_LABELS, rng(3)).loss
    torch.testing.assert_close(loss, total, rtol=0, atol=1e-8)
    wanted = torch.autograd.grad(total, list(learning.values()))
    for name, found, expected in zip(learning, torch.autograd.grad(loss, [*learning.values()]), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-8, msg=name)


@pytest.mark.parametrize("task", [Igpt(), Igpt(objective=Masked())])
def test_the_first_loss_with_512_colors_is_6_2383(task: Igpt) -> None:
    mixer = "mixer=causal" if task == Igpt() else "mixer=attention"
    first = task.build(override(MODEL, [mixer, "stem.colors=512"]).build(), 0, (), CENTERED)
    loss = first(photos(), NO_LABELS, rng()).loss.item()
    assert loss == pytest.approx(log(512), abs=1e-5)
    assert loss == pytest.approx(6.2383, abs=1e-4)


def test_a_pixel_is_predicted_from_those_before_it_alone() -> None:
    task, images = built(), photos(1)
    changed = images.clone()
    changed[:, :, 3, 2] *= -1  # the pixel 20
    assert (task.stem.codes(images) != task.stem.codes(changed)).nonzero().tolist() == [[0, 20]]
    seen: list[Tensor] = []
    task.predict.register_forward_hook(lambda _, inputs, output: seen.append(output[0]))
    for each in (images, changed):
        task(each, NO_LABELS, rng())
    differs = (seen[0] != seen[1]).any(dim=1)
    assert differs.nonzero()[:, 0].tolist() == list(range(21, 36))


def test_a_hidden_pixel_leaves_no_trace_in_what_is_predicted() -> None:
    task, images = masked(), photos(2)
    hidden = task.draw_hidden(images, rng(1)).unflatten(1, (6, 6))[:, None]
    assert 0.15 < hidden.float().mean() < 0.45
    seen: list[Tensor] = []
    task.predict.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for each in (images, torch.where(hidden, -images, images)):
        task(each, NO_LABELS, rng(1))
    assert torch.equal(*seen)


def test_pixels_are_drawn_one_after_another_as_without_a_cache() -> None:
    """Oracle: a whole forward pass for each pixel, and its color by the inverse of the distribution function."""
    task, grid = built().double().eval(), Grid(6, 6)
    codes, numbers = task.stem.codes(photos().double()), torch.rand(3, 26, dtype=torch.float64)
    found = task.complete(codes, grid, 10, numbers, temperature=0.7)
    expected = codes.clone()
    layout = task.model.config.layout(Size(6, 6))
    for place in range(10, 36):
        encoded = task.config.objective.encode(task.model, expected, torch.ones(3, 36), layout)[:, place]
        chances = (task.predict(encoded) / 0.7).softmax(dim=1)
        for image, row in enumerate(chances):
            heights = row.cumsum(dim=0)
            expected[image, place] = next(k for k in range(12) if k == 11 or heights[k] > numbers[image, place - 10])
    assert torch.equal(found, expected)
    assert torch.equal(found[:, :10], codes[:, :10])
    assert not torch.equal(found, codes)
    assert torch.equal(task.complete(codes, grid, 36, numbers), codes)  # nothing is left to draw


def test_frequent_colors_are_drawn_as_often_as_they_are_probable() -> None:
    task = built()
    with torch.no_grad():  # the same distribution at every place
        task.model.norm.get_parameter("weight").zero_()
    drawn = task.complete(torch.zeros(200, 36, dtype=torch.int64), Grid(6, 6), 0, torch.rand(200, 36))
    counts = torch.bincount(drawn.flatten(), minlength=12) / drawn.numel()
    torch.testing.assert_close(counts, torch.full((12,), 1 / 12), rtol=0, atol=0.02)


def test_an_image_is_completed_from_its_upper_half_in_colors_of_the_palette() -> None:
    task, images = built().eval(), photos()
    pictures = task.reconstruct(images)
    assert pictures is not None
    torch.testing.assert_close(pictures.images, CENTERED.restore(images))
    colors = CENTERED.restore(task.stem.palette[:, :, None, None]).clamp(0, 255)[..., 0, 0]  # (K, C)
    assert torch.equal(pictures.predictions[:, :, :3].clamp(0, 255), pictures.targets[:, :, :3].clamp(0, 255))
    for picture in (pictures.targets.clamp(0, 255), pictures.predictions):
        distances = (picture[:, :, None] - colors.mT[None, :, :, None, None]).abs().sum(dim=1)  # (B, K, H, W)
        assert not distances.amin(dim=1).any()
    assert torch.equal(pictures.inputs[:, :, :3], pictures.targets[:, :, :3])
    assert (pictures.inputs[:, :, 3:] == 128).all()
    again = task.reconstruct(images)
    assert again is not None
    assert torch.equal(again.predictions, pictures.predictions)


def test_hidden_pixels_are_predicted_and_the_others_stay() -> None:
    task, images = masked().eval(), photos()
    pictures = task.reconstruct(images)
    assert pictures is not None
    hidden = task.draw_hidden(images, rng()).unflatten(1, (6, 6))[:, None].expand_as(images)
    assert (pictures.inputs[hidden] == 128).all()
    assert torch.equal(pictures.predictions[~hidden], pictures.targets.clamp(0, 255)[~hidden])
    assert not torch.equal(pictures.predictions[hidden], pictures.targets.clamp(0, 255)[hidden])


def test_the_palette_is_that_of_the_images_and_is_not_computed_again() -> None:
    task = Igpt().build(MODEL.build(), 0, (), CENTERED)
    assert isinstance(task, PixelModeling)
    assert task.fit_images == 86  # 12 colors from 256 pixels each, of 36 an image
    task.fit_buffers(photos(86), rng())
    errors = (photos(200).flatten(2).mT[..., None, :] - task.stem.palette).square().sum(dim=3).amin(dim=2)
    assert errors.mean() < 0.22  # a lattice of 12 cells of the cube has 3 / 12 * (8 / 12)^(2 / 3) = 0.19
    other = MODEL.build()
    other.load_weights(task.model.state_dict())
    assert Igpt().build(other, 0, (), CENTERED).fit_images == 0


def test_images_of_fewer_colors_than_the_palette_are_kept_as_they_are() -> None:
    task = Igpt().build(MODEL.build(), 0, (), CENTERED)
    assert isinstance(task, PixelModeling)
    images = torch.tensor([-1.0, 0.0, 0.5])[torch.randint(0, 3, (4, 1, 6, 6))].expand(-1, 3, -1, -1)
    task.fit_buffers(images, rng())
    codes = task.stem.codes(images)
    assert codes.max() == 2
    assert torch.equal(task.stem.colors(codes, Grid(6, 6)), images)


@pytest.mark.parametrize(
    ("task", "model", "where"),
    [
        (Igpt(), override(MODEL, ["stem=patches", "stem.patch=2"]), "model.stem"),
        (Igpt(), Resnet(), "model.stem"),
        (Igpt(), override(MODEL, ["mixer=attention"]), "model.mixer"),
        (Igpt(), override(MODEL, ["tokens.cls=false"]), "model.tokens.cls"),
        (Igpt(), override(MODEL, ["position=rope2d"]), "model.position"),
        (Igpt(), override(MODEL, ["position.where=layers"]), "model.position"),
        (Igpt(objective=Masked()), MODEL, "model.mixer"),
        (Igpt(objective=Masked()), override(MODEL, ["mixer=pooling", "tokens.cls=false"]), "model.mixer"),
    ],
)
def test_models_that_do_not_fit_are_refused_with_what_to_set(task: Igpt, model: Vit | Resnet, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task.check(model)
    assert (caught.value.code, caught.value.where) == ("config.unsupported", where)
    assert f"set {where}=" in caught.value.hint


def test_the_masked_form_takes_any_attention_and_needs_no_class_token() -> None:
    Igpt(objective=Masked()).check(override(MODEL, ["mixer=axial", "tokens.cls=false"]))
