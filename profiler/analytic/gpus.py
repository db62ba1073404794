"""GPUs, and the memory that there is on them: less than the name on the box says."""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One model of GPU, with what torch calls its total capacity.

    Where several were reported, the least: drivers and error correction take their part.
    """

    name: str
    total_bytes: int
    source: str


def _reported(name: str, gib: float, issue: str) -> Gpu:
    """A capacity out of torch's own message of an out-of-memory error."""
    return Gpu(
        name=name,
        total_bytes=round(gib * _GIB),
        source=f"torch: a total capacity of {gib:.2f} GiB (github.com/{issue})",
    )


GPUS = (
    _reported("RTX 4060 8 GB", 7.75, "ESRSchao/EdgeRegNet/issues/2"),
    _reported("RTX 3080 10 GB", 9.78, "zai-org/CogVideo/issues/34"),
    _reported("RTX 2080 Ti 11 GB", 10.76, "RenYurui/StructureFlow/issues/35"),
    _reported("T4 16 GB", 14.56, "AlphaGPU/leetgpu-challenges/issues/52"),
    _reported("RTX A4000 16 GB", 15.61, "DengKaiCQ/VGGT-Long/issues/6"),
    _reported("V100 16 GB", 15.77, "nomic-ai/gpt4all/issues/544"),
    _reported("A10G 24 GB", 21.99, "mistralai/mistral-finetune/issues/69"),
    _reported("RTX 4090 24 GB", 23.52, "Soul-AILab/SoulX-FlashTalk/issues/5"),
    _reported("RTX 3090 24 GB", 23.70, "GaoLii/DSP/issues/10"),
    _reported("RTX 5090 32 GB", 31.36, "TrajectoryCrafter/TrajectoryCrafter/issues/20"),
    _reported("V100 32 GB", 31.75, "google/dynibar/issues/8"),
    _reported("A100 40 GB", 39.50, "TianheWu/CoSeR/issues/10"),
    _reported("L40, L40S 48 GB", 44.40, "QwenLM/Qwen3-VL/issues/2097"),
    _reported("RTX A6000 48 GB", 47.54, "google-research/semivl/issues/18"),
    _reported("H100 80 GB", 79.11, "vllm-project/vllm/issues/27508"),
    _reported("A100 80 GB", 79.14, "lianqi1008/Control-GIC/issues/6"),
    Gpu(
        name="B200 192 GB",
        total_bytes=round(178.35 * _GIB),
        source="CUDA's totalGlobalMem, 178.35 GiB (github.com/pytorch/ao/pull/4002)",
    ),
)
"""From the smallest to the largest."""
