"""Which bits a machine computes in, what it says of it, and the scaling of float16."""

import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vitral.core.config import union_members
from vitral.training.precision import (
    Auto,
    BasePrecision,
    Bfloat16,
    Float16,
    Float32,
    Precision,
    PrecisionConfig,
    cpu_hardware,
    gpu_hardware,
    probe_hardware,
)

CPU = torch.device("cpu")
ZEN3 = {"architecture": "x86_64", "cpu_name": "AMD EPYC", "avx2": True, "avx512_bf16": False, "amx_bf16": False}
ZEN4 = ZEN3 | {"avx512_bf16": True}
GRANITE = ZEN4 | {"cpu_name": "Xeon 6", "amx_bf16": True, "amx_fp16": True, "avx512_fp16": True}
GRAVITON = {"architecture": "arm64", "neon": True, "bf16": True}
OLD_ARM = {"architecture": "arm64", "neon": True}
BITS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@pytest.mark.parametrize(
    ("capabilities", "auto", "bfloat16", "float16"),
    [
        (ZEN3, "f32", "f32", "f32"),
        (ZEN4, "f32", "bf16", "f32"),
        (GRANITE, "f32", "bf16", "f16"),
        (GRAVITON, "f32", "bf16", "f32"),
        (OLD_ARM, "f32", "f32", "f32"),
    ],
)
def test_a_cpu_computes_in_16_bits_when_asked_and_able(
    capabilities: dict[str, Any], auto: str, bfloat16: str, float16: str
) -> None:
    hardware = cpu_hardware(capabilities)
    found = [kind.decide(hardware).dtype for kind in (Auto(), Bfloat16(), Float16(), Float32())]
    assert found == [BITS[auto], BITS[bfloat16], BITS[float16], torch.float32]


@pytest.mark.parametrize(
    ("name", "capability", "auto", "bfloat16", "float16"),
    [
        ("GTX 1080", (6, 1), "f32", "f32", "f32"),
        ("V100", (7, 0), "f16", "f32", "f16"),
        ("T4", (7, 5), "f16", "f32", "f16"),
        ("A100", (8, 0), "bf16", "bf16", "f16"),
        ("H100", (9, 0), "bf16", "bf16", "f16"),
        ("B200", (10, 0), "bf16", "bf16", "f16"),
    ],
)
def test_a_gpu_computes_in_what_its_cores_have(
    name: str, capability: tuple[int, int], auto: str, bfloat16: str, float16: str
) -> None:
    hardware = gpu_hardware(name, capability)
    found = [kind.decide(hardware).dtype for kind in (Auto(), Bfloat16(), Float16(), Float32())]
    assert found == [BITS[auto], BITS[bfloat16], BITS[float16], torch.float32]


def test_what_cannot_be_had_is_said_in_one_line() -> None:
    for asked, hardware, name in (
        (Bfloat16(), cpu_hardware(ZEN3), "AMD EPYC"),
        (Float16(), cpu_hardware(OLD_ARM), "arm64"),
        (Bfloat16(), gpu_hardware("T4", (7, 5)), "T4 (capability 7.5)"),
        (Float16(), probe_hardware(torch.device("mps")), "mps"),
    ):
        dtype, message = asked.decide(hardware)
        assert dtype == torch.float32
        assert all(part in message for part in (asked.kind, name, "float32"))


@pytest.mark.parametrize("kind", union_members(PrecisionConfig))
def test_what_is_had_as_asked_needs_no_words(kind: type[BasePrecision]) -> None:
    assert kind().decide(gpu_hardware("H100", (9, 0))).message == ""
    assert Auto().decide(cpu_hardware(ZEN3)).message == Float32().decide(cpu_hardware(ZEN3)).message == ""


@pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64", reason="reads Linux's list of flags"
)
def test_this_machine_has_what_its_kernel_says() -> None:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags = next(line for line in text.splitlines() if line.startswith("flags")).split()
    hardware = probe_hardware(CPU)
    assert (torch.bfloat16 in hardware.supported) == ("avx512_bf16" in flags or "amx_bf16" in flags)
    assert (torch.float16 in hardware.supported) == ("avx512_fp16" in flags or "amx_fp16" in flags)


@pytest.mark.parametrize("dtype", BITS.values())
def test_products_are_of_the_type_decided_and_weights_stay_in_float32(dtype: torch.dtype) -> None:
    part, precision = nn.Linear(4, 4), Precision(dtype, CPU)
    with precision.autocast():
        product = part(torch.randn(2, 4))
    assert product.dtype == dtype
    precision.scaler.scale(product.float().sum()).backward()
    assert part.weight.grad is not None
    assert part.weight.grad.dtype == torch.float32


def learn(part: nn.Module, precision: Precision, factor: float = 1.0) -> torch.optim.Optimizer:
    """One step of gradient descent as a loop takes it, on a loss that is the sum of the outputs times a factor."""
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    loss = part(torch.ones(1, 3)).sum() * factor
    precision.scaler.scale(loss).backward()
    precision.scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(part.parameters(), 2.0)
    precision.scaler.step(optimizer)
    precision.scaler.update()
    return optimizer


@pytest.mark.parametrize("dtype", BITS.values())
def test_a_step_is_the_same_in_any_scale(dtype: torch.dtype) -> None:
    part = nn.Linear(3, 1)
    before = part.weight.detach().clone()
    learn(part, Precision(dtype, CPU))
    # The gradient is 1 in each of 4 places, of norm 2: clipping after unscaling leaves it alone.
    torch.testing.assert_close(part.weight.detach(), before - 0.1, atol=1e-6, rtol=0)


def test_a_gradient_that_overflows_is_left_out_and_scaled_less_from_then_on() -> None:
    part, precision = nn.Linear(3, 1), Precision(torch.float16, CPU)
    before = part.weight.detach().clone()
    learn(part, precision, factor=1e38)
    assert part.weight.equal(before)
    assert precision.state()["scale"] == 2.0**15
    learn(nn.Linear(3, 1), precision)
    assert precision.state()["_growth_tracker"] == 1


def test_the_scaler_goes_on_from_its_saved_state() -> None:
    precision = Precision(torch.float16, CPU)
    learn(nn.Linear(3, 1), precision, factor=1e38)
    learn(nn.Linear(3, 1), precision)
    saved = json.loads(json.dumps(precision.state()))
    again = Precision(torch.float16, CPU)
    again.restore(saved)
    assert again.state() == precision.state()
    assert again.scaler.get_scale() == 2.0**15


def test_a_run_may_resume_in_another_precision() -> None:
    single, half = Precision(torch.float32, CPU), Precision(torch.float16, CPU)
    assert single.state() == {}
    half.restore(single.state())
    assert half.scaler.get_scale() == 2.0**16
    single.restore(half.state())
    assert single.state() == {}
