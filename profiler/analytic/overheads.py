"""What lies beside the tensors: libraries' workspaces, the allocator's slack, the context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramscope.storage.records import MemoryClass, Phase

from .scenario import Scenario
from .terms import ALWAYS, Allocation, Term, make_term

KIB, MIB = 2**10, 2**20
HOPPER = ("H100", "H200", "H800", "GH200", "B100", "B200", "GB200")
"""GPUs of compute capability 9 and 10, for which torch asks for larger workspaces."""
WORKSPACE_SOURCE = "torch aten/src/ATen/cuda/CublasHandlePool.cpp parseChosenWorkspaceSize"
RESERVED_SOURCE = (
    "published memory snapshots: 1.4 to 11 % above the peak allocated; replays of dry runs: 6 to "
    "11 %; more where tensors grow step by step"
)
SLACK = (1.0, 1.04, 1.2)
"""What is reserved over what is allocated at the peak: least, usual, most."""
CONTEXTS: Mapping[str, tuple[int, int]] = {
    "V100": (300 * MIB, 460 * MIB),
    "T4": (250 * MIB, 400 * MIB),
    "A100": (410 * MIB, 600 * MIB),
    "H100": (500 * MIB, 750 * MIB),
}
"""Context and loaded kernels of one process, by GPU: CUDA 11 to 12, libraries of torch 2."""
ANY_CONTEXT = (250 * MIB, 750 * MIB)


@dataclass(frozen=True, slots=True)
class Band:
    """Between which bytes a figure lies that no formula decides, and where it usually is."""

    low: int
    usual: int
    high: int


def workspace_bytes(gpu: str | None) -> int:
    """What one cuBLAS handle takes from the allocator: 32 MiB on Hopper, else 8 MiB + 128 KiB."""
    if gpu and any(name in gpu for name in HOPPER):
        return 32 * MIB
    return 8 * MIB + 128 * KIB


def workspace_terms(scenario: Scenario) -> list[Term]:
    """One workspace a thread that multiplies: the forward's, and autograd's own."""
    if scenario.device != "cuda":
        return []
    each = workspace_bytes(scenario.gpu)
    threads = 1 if scenario.inference else 2
    phases = frozenset({Phase.FORWARD, Phase.IDLE}) if scenario.inference else ALWAYS
    return [
        make_term(
            "cuBLAS workspaces",
            MemoryClass.TEMPORARIES,
            [Allocation(each, threads)],
            f"{threads} × {each:,} B, from the first product of each thread on",
            WORKSPACE_SOURCE,
            phases,
        )
    ]


def reserved_band(allocated: int, growing: int = 0) -> Band:
    """What the caching allocator holds for a peak: whole segments, and pieces between tensors.

    Args:
        allocated: Peak of what is allocated.
        growing: The part of it in tensors that are copied to be one token longer: the blocks that
            they leave are too small for the next ones, and stay cached.
    """
    low, usual, high = (int(allocated * factor) for factor in SLACK)
    if growing * 4 < allocated:
        return Band(low, usual, high)
    return Band(low + growing * 6 // 10, low + growing * 9 // 10, low + growing * 12 // 10)


def distributed_band(allocated: int) -> Band:
    """A rank's peak: how far gathering runs ahead, and how evenly ranks share, is not known."""
    return Band(int(allocated * 0.905), allocated, int(allocated * 1.095))


def device_band(reserved: Band, gpu: str | None, context: int | None = None) -> Band:
    """What the driver counts for the process: reserved, and the context with loaded kernels.

    Args:
        reserved: What the allocator holds.
        gpu: Name of the GPU.
        context: Bytes of the context where they have been measured on that machine.
    """
    known = next((v for name, v in CONTEXTS.items() if gpu and name in gpu), ANY_CONTEXT)
    low, high = (context, context) if context is not None else known
    return Band(reserved.low + low, reserved.usual + (low + high) // 2, reserved.high + high)
