"""Precision of training: float32, or mixed precision where the hardware supports it.

Weights and optimizer state stay in float32. Mixed precision runs matrix products in 16 bits, which pays off only with
hardware support: on a CPU without bfloat16 instructions it takes six times as long as float32.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch.amp import GradScaler, autocast

from vitral.core.config import Config, OpenUnion

# CPU instructions for 16-bit products, by the names of torch.cpu.get_capabilities().
CPU_INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"),  # the last two of ARM
    torch.float16: ("avx512_fp16", "amx_fp16"),
}


class Hardware(NamedTuple):
    """The types that a device supports, the default, and why others are not used."""

    supported: tuple[torch.dtype, ...]
    best: torch.dtype
    reason: str


class Decision(NamedTuple):
    """The type to compute in, and a message for the user if it is not the requested one."""

    dtype: torch.dtype
    message: str = ""


class BasePrecision(Config):
    """A requested precision."""

    dtype: ClassVar[torch.dtype]

    def decide(self, hardware: Hardware) -> Decision:
        """The requested type, or float32 if the hardware does not support it."""
        if self.dtype in hardware.supported:
            return Decision(self.dtype)
        name = str(self.dtype).removeprefix("torch.")
        return Decision(torch.float32, f"{name} is not used because {hardware.reason}: training in float32")


class Auto(BasePrecision):
    """Mixed precision on a GPU that supports it, else float32."""

    kind: Literal["auto"] = "auto"

    def decide(self, hardware: Hardware) -> Decision:
        return Decision(hardware.best)


class Float32(BasePrecision):
    """Everything in float32."""

    kind: Literal["float32"] = "float32"
    dtype: ClassVar[torch.dtype] = torch.float32


class Bfloat16(BasePrecision):
    """Mixed precision with the range of float32 and 8 bits of precision."""

    kind: Literal["bfloat16"] = "bfloat16"
    dtype: ClassVar[torch.dtype] = torch.bfloat16


class Float16(BasePrecision):
    """Mixed precision with 11 bits of precision and loss scaling: for GPUs without bfloat16."""

    kind: Literal["float16"] = "float16"
    dtype: ClassVar[torch.dtype] = torch.float16


PrecisionConfig = Annotated[Auto | Float32 | Bfloat16 | Float16, OpenUnion()]


def probe_hardware(device: torch.device) -> Hardware:
    """The precision support of a device."""
    match device.type:
        case "cuda":
            return gpu_hardware(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
        case "cpu":
            return cpu_hardware(torch.cpu.get_capabilities())
        case other:
            return Hardware((torch.float32,), torch.float32, f"it is untested on {other} devices")


def gpu_hardware(name: str, capability: tuple[int, int]) -> Hardware:
    """Tensor cores support float16 from capability 7.0, bfloat16 from 8.0."""
    needed = {torch.bfloat16: (8, 0), torch.float16: (7, 0), torch.float32: (0, 0)}  # best first
    supported = tuple(dtype for dtype, least in needed.items() if capability >= least)
    reason = f"{name} (capability {capability[0]}.{capability[1]}) does not support it"
    return Hardware(supported, supported[0], reason)


def cpu_hardware(capabilities: Mapping[str, Any]) -> Hardware:
    """A CPU uses 16 bits only on request: even with the instructions the gain depends on the model."""
    name = capabilities.get("cpu_name", capabilities["architecture"])
    supported = [dtype for dtype, names in CPU_INSTRUCTIONS.items() if any(map(capabilities.get, names))]
    reason = f"this processor ({name}) has no instructions for it"
    return Hardware((torch.float32, *supported), torch.float32, reason)


class Precision:
    """The autocast context and the gradient scaler of a run.

    Only float16 uses the scaler; for other types it is disabled, so the loop is the same for all. The scaler skips a
    step whose gradients overflow, and lowers the scale.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.scaler = GradScaler(device.type, enabled=dtype == torch.float16)

    def autocast(self) -> autocast:
        return autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def state(self) -> dict[str, float]:
        """The state of the scaler; empty if it is disabled."""
        return self.scaler.state_dict()

    def restore(self, state: Mapping[str, float]) -> None:
        """Load a saved state. It is empty for a run saved in another precision; then the scaler starts again."""
        if state:
            self.scaler.load_state_dict(dict(state))
