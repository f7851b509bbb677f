"""A stand-in for timm on a subprocess's import path: a plain ViT in a few lines, checked against timm's answers."""

import os
from pathlib import Path

import pytest

TIMM = '''
import json
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class VisionTransformer:
    """A pre-norm ViT with a class token, computed from its state dict; norms follow the branches where asked."""

    def __init__(self, heads, names, num_classes, post):
        self.heads, self.names, self.num_classes, self.post = heads, names, num_classes, post

    def load_state_dict(self, tensors, strict):
        missing, unexpected = self.names - tensors.keys(), tensors.keys() - self.names
        if strict and (missing or unexpected):
            raise RuntimeError(f"Error(s) in loading state_dict: {sorted(missing | unexpected)}")
        self.w = tensors

    def eval(self):
        return self

    def layer(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"], 1e-6)

    def linear(self, name, x):
        return F.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def attention(self, name, x):
        b, n, d = x.shape
        q, k, v = self.linear(f"{name}.qkv", x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        return self.linear(f"{name}.proj", x)

    def forward_features(self, images):
        kernel = self.w["patch_embed.proj.weight"]
        x = F.conv2d(images, kernel, self.w["patch_embed.proj.bias"], stride=kernel.shape[2:]).flatten(2).mT
        x = torch.cat([self.w["cls_token"].expand(len(x), -1, -1), x], dim=1)
        if x.shape[1] != self.w["pos_embed"].shape[1]:
            raise AssertionError("Input size doesn't match model")
        x = x + self.w["pos_embed"]
        for n in range(1 + max(int(name.split(".")[1]) for name in self.w if name.startswith("blocks."))):
            branches = (
                lambda x: self.attention(f"blocks.{n}.attn", x),
                lambda x: self.linear(f"blocks.{n}.mlp.fc2", F.gelu(self.linear(f"blocks.{n}.mlp.fc1", x))),
            )
            for which, branch in enumerate(branches, start=1):
                norm = f"blocks.{n}.norm{which}"
                x = x + (self.layer(norm, branch(x)) if self.post else branch(self.layer(norm, x)))
        return self.layer("norm", x)

    def forward_head(self, tokens):
        return self.linear("head", tokens[:, 0])


def create_model(name, pretrained=False, num_classes=1000, **arguments):
    if os.environ.get("FAKE_TIMM_REFUSES"):
        raise RuntimeError("Error(s) in loading state_dict: Missing key(s): 'blocks.0.ls1.gamma'")
    post = bool(os.environ.get("FAKE_TIMM_NORM_AFTER_BRANCH"))
    if name.startswith("local-dir:"):
        folder = Path(name.removeprefix("local-dir:"))
        config = json.loads((folder / "config.json").read_bytes())
        tensors = load_file(folder / "model.safetensors")
        heads, classes = config["model_args"].get("num_heads", 3), config["num_classes"]
        model = VisionTransformer(heads, tensors.keys(), classes, post)
        model.load_state_dict(tensors, strict=True)
        return model
    names = set(json.loads(os.environ["FAKE_TIMM_NAMES"]))
    return VisionTransformer(int(name.rpartition("_")[2]), names, num_classes, post)
'''


def install_timm(home: Path, monkeypatch: pytest.MonkeyPatch, code: str = TIMM) -> None:
    """Put a package called timm, version 9.9, on the import path of the processes that are started from now on."""
    info = home / "timm-9.9.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: timm\nVersion: 9.9\n")
    (home / "timm.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(home), os.environ.get("PYTHONPATH", "")])))
