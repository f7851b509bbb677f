"""The analysis of one image: every layer, and the maps that one forward and one backward pass give.

L layers, T tokens, D width, H heads, K classes, R x S patches, t tokens that are shown (prefix + cells).
"""

from typing import Literal

import torch
from torch import Tensor

from vitral.core.activation import probabilities
from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.explanation.attention_distance import attention_distance, cell_grid, pool_attention, sum_cells
from vitral.explanation.class_probability import check_class
from vitral.explanation.explanation import Analysis, Array, LayerView, MapKind
from vitral.explanation.logit_lens import lens_probabilities
from vitral.explanation.relevance import embed_with_grad, propagate_relevance, read_out
from vitral.explanation.rollout import extend_rollout, identity_rollout, rollout_to_patches
from vitral.explanation.similarity import cosine_similarity, pca_colors
from vitral.explanation.trace import LayerStep, has_attention, require_vit, run_layers
from vitral.explanation.walkthrough.steps import to_array
from vitral.models.base import Grid, Layout, Model
from vitral.models.head import NoHead
from vitral.models.hooks import AttentionRecord, eval_mode
from vitral.models.resnet import ResidualNetwork
from vitral.models.vit import VisionTransformer

Target = int | Literal["predicted"]  # a class, or the most probable one


def analyze(model: Model, image: Tensor, target: Target = "predicted", use_head: bool = True) -> Analysis:
    """Analyze one image (1, C, H, W); relevance is about the target. A head that was not trained is left out."""
    use_head = use_head and not isinstance(model.config.head, NoHead)
    if isinstance(model, ResidualNetwork):
        return _analyze_resnet(model, image, use_head)
    vit = require_vit(model)
    layout, size = vit.layout(image), Size(*image.shape[2:])
    if len(image) != 1:
        message = f"expected one image, got {len(image)}"
        raise ConfigError(message, code="config.wrong_count", where="image", hint="pass one image at a time")
    if target != "predicted":
        check_class(model, target)
    attends = has_attention(model)
    layers: list[LayerView] = []
    records: list[AttentionRecord] = []
    maps: dict[MapKind, Array] = {}
    rollout = identity_rollout(layout.length(), image)  # (1, T, T)
    with eval_mode(model), torch.inference_mode(False), torch.set_grad_enabled(attends and use_head):
        for step in run_layers(vit, embed_with_grad(vit, image, layout), layout):
            with torch.no_grad():
                attention = step.attention()  # (1, H, T, T)
                layers.append(_analyze_layer(vit, step, attention, size, use_head))
                rollout = extend_rollout(rollout, attention) if attends else rollout
            records += step.recordings
        readout = read_out(vit, step.after, layout)
        if attends:
            maps["rollout"] = to_array(rollout_to_patches(readout.shares, rollout, layout)[0])
            if use_head:
                label = int(readout.logits.argmax()) if target == "predicted" else target
                maps["relevance"] = to_array(propagate_relevance(records, readout, [label], layout)[0])
            maps["attention"] = to_array(rollout_to_patches(readout.shares, attention.mean(dim=1), layout)[0])
    patches = readout.features[0, layout.prefix() :].detach()  # (N, D)
    return _analysis(layout, patches, layers[-1].probabilities, tuple(layers), maps)


@torch.no_grad()
def _analyze_resnet(model: ResidualNetwork, image: Tensor, use_head: bool) -> Analysis:
    """A ResNet has neither layers of tokens nor attention: only its prediction and its last feature map are shown."""
    with eval_mode(model):
        features = model.forward_features(image)
        pooled = features.patches.mean(dim=1)  # (1, D)
        chances = probabilities(model.head(pooled)[0], model.activation) if use_head else image.new_empty(0)  # (K,)
    return _analysis(Layout(0, 0, features.grid), features.patches[0], to_array(chances), (), {})


def _analyze_layer(
    model: VisionTransformer, step: LayerStep, attention: Tensor, size: Size, use_head: bool
) -> LayerView:
    """What is kept of a layer, without its gradients."""
    layout = step.layout
    probabilities = lens_probabilities(model, step.after.detach(), layout)[0] if use_head else attention.new_empty(0)
    return LayerView(
        layer=step.layer,
        attention=to_array(pool_attention(attention, layout, cell_grid(layout.grid))[0]),
        distance=to_array(attention_distance(attention, layout, size)[0]),
        probabilities=to_array(probabilities),
    )


def _analysis(
    layout: Layout, patches: Tensor, probabilities: Array, layers: tuple[LayerView, ...], maps: dict[MapKind, Array]
) -> Analysis:
    cells = cell_grid(layout.grid)
    return Analysis(
        layout=layout,
        cells=cells,
        probabilities=probabilities,
        layers=layers,
        maps=maps,
        feature_colors=pca_colors(patches, layout.grid),
        similarity=cosine_similarity(mean_tokens(patches, layout.grid, cells)),
    )


def mean_tokens(patches: Tensor, grid: Grid, cells: Grid) -> Tensor:
    """The mean token of each cell (cells, D) of patch tokens (N, D)."""
    layout = Layout(0, 0, grid)
    sizes = sum_cells(patches.new_ones(grid.cells()), layout, cells)  # (cells,)
    return (sum_cells(patches.mT, layout, cells) / sizes).mT
