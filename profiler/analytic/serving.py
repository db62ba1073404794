"""How a vLLM server divides a GPU: weights, what its profiling run needs, and the cache."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
LARGE_DEVICE = 70 * GIB
"""From here on, A100s apart, vLLM takes 1024 sequences at once, else 256 (``arg_utils.py``)."""
SAMPLER_BYTES = 2 + 4 + 4 + 8 + 12 + 4 + 4
"""Of one logit while the sampler is profiled: 16-bit, float32, sorted with its position, the sort's
second buffers for both, probability, cumulative sum."""


@dataclass(frozen=True, slots=True)
class ServerSplit:
    """Bytes of one GPU."""

    weights: int
    activation_peak: int
    kv_cache: int


def largest_batch(capacity: int, gpu: str) -> int:
    """Sequences that a server takes at once where nothing is set."""
    return 1024 if capacity >= LARGE_DEVICE and "A100" not in gpu else 256


def server_split(
    *, weights: int, vocabulary: int, capacity: int, gpu: str, utilization: float
) -> ServerSplit:
    """What the start-up log of a server says.

    The profiling run's peak is the sampler's, over the logits of as many sequences as are taken
    at once; the cache is what is left of ``utilization`` of the device. What lies outside torch
    (a few hundred MiB) is not counted. Source: vLLM 0.11 ``v1/worker/gpu_worker.py``
    determine_available_memory, ``v1/sample/ops/topk_topp_sampler.py``.

    Args:
        weights: Bytes of this device's weights.
        vocabulary: Tokens that are sampled from.
        capacity: Bytes of the device.
        gpu: Its name.
        utilization: ``gpu_memory_utilization``.
    """
    peak = largest_batch(capacity, gpu) * vocabulary * SAMPLER_BYTES
    return ServerSplit(weights, peak, max(0, int(capacity * utilization) - weights - peak))
