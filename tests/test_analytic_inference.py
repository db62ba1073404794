"""Inference: the cache to the byte, a prompt's fullest instant, and quantised weights."""

from __future__ import annotations

from typing import Any

import pytest
from vramscope.profiler.analytic import BatchShape, DecoderArchitecture, Scenario, predict
from vramscope.profiler.analytic.inference import InferenceSpec
from vramscope.profiler.analytic.serving import largest_batch, server_split
from vramscope.storage.records import Phase

GIB = 2**30


def grouped(**changes: Any) -> DecoderArchitecture:
    """Llama 3 8B's sizes."""
    values: dict[str, Any] = {
        "family": "llama",
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "intermediate": 14336,
        "vocabulary": 128256,
        "positions": 8192,
        "activation": "silu",
        "tied": False,
    }
    return DecoderArchitecture(**{**values, **changes})


def generating(**changes: Any) -> Scenario:
    values: dict[str, Any] = {
        "architecture": grouped(),
        "weight_dtype": "bfloat16",
        "batch": BatchShape(micro_batch=1, sequence=1024),
        "inference": InferenceSpec(new_tokens=1024),
    }
    return Scenario(**{**values, **changes})


def cache_bytes(scenario: Scenario) -> int:
    return predict(scenario).phases[Phase.IDLE].kv_cache or 0


def test_cache_of_grouped_queries_is_128_kib_a_token() -> None:
    assert cache_bytes(generating()) == 2048 * 128 * 2**10


@pytest.mark.parametrize(
    ("spec", "tokens"),
    [
        (InferenceSpec(new_tokens=1024, beams=4), 4 * 2048),
        (InferenceSpec(new_tokens=1024, window=512), 512),
        (InferenceSpec(new_tokens=1024, cache="static", cache_tokens=4096), 4096),
        (InferenceSpec(new_tokens=1024, cache_dtype="float8_e4m3fn"), 1024),
        (InferenceSpec(new_tokens=1024, cache="none"), 0),
    ],
)
def test_what_the_cache_depends_on(spec: InferenceSpec, tokens: int) -> None:
    """``tokens`` are counted in 16 bit: 8 bits halve them."""
    assert cache_bytes(generating(inference=spec)) == tokens * 128 * 2**10


def test_a_quantised_cache_has_scales_and_zero_points_of_each_head() -> None:
    spec = InferenceSpec(new_tokens=1024, cache_dtype="int8")
    each = 32 * (2 * 1024 + 2 * 2 * 2 * 8)
    assert cache_bytes(generating(inference=spec)) == pytest.approx(2048 * each, rel=1e-6)


def test_no_gradients_no_state_nothing_kept_for_backward() -> None:
    peak = predict(generating()).peak
    assert (peak.gradients, peak.optimizer_state, peak.activations) == (0, 0, 0)
    assert peak.parameters is not None
    assert peak.parameters >= 8_030_261_248 * 2


def test_a_long_prompt_peaks_in_the_mlp() -> None:
    """Gate, input and product of the MLP, and the stream four times, for each token."""
    tokens = 16_384
    scenario = generating(
        batch=BatchShape(micro_batch=1, sequence=tokens), inference=InferenceSpec(new_tokens=1)
    )
    terms = {t.name: t.bytes for t in predict(scenario).terms}
    inside = 2 * tokens * (3 * 14336 + 4 * 4096)
    assert terms["the fullest block, beside the stream"] == pytest.approx(inside, rel=0.01)


def test_logits_of_every_position_are_more_than_the_last_ones() -> None:
    last = predict(generating()).peak.allocated or 0
    spec = InferenceSpec(new_tokens=0, logits="all")
    every = predict(generating(inference=spec)).peak.allocated or 0
    assert every > last


def test_loading_holds_the_largest_matrix_beside_packed_weights() -> None:
    packed = generating(
        weight_dtype="nf4",
        batch=BatchShape(micro_batch=1, sequence=8),
        inference=InferenceSpec(new_tokens=8, loading_copies=2),
    )
    terms = {t.name: t.bytes for t in predict(packed).terms}
    assert terms["the largest matrix in 16 bit, while it is quantised"] == 2 * 2 * 128256 * 4096


def test_workspaces_by_gpu() -> None:
    terms = {
        gpu: {t.name: t.bytes for t in predict(generating(gpu=gpu)).terms}["cuBLAS workspaces"]
        for gpu in ("A100-80GB", "NVIDIA H100 80GB HBM3")
    }
    assert list(terms.values()) == [8 * 2**20 + 128 * 2**10, 32 * 2**20]


def test_a_growing_cache_leaves_blocks_behind() -> None:
    spec = InferenceSpec(new_tokens=2048)
    many = generating(batch=BatchShape(micro_batch=64, sequence=64), inference=spec)
    static = many.replace(inference=InferenceSpec(new_tokens=2048, cache="static"))
    grown, made = predict(many).reserved, predict(static).reserved
    assert grown is not None
    assert made is not None
    assert grown.usual - made.usual > 10 * GIB


def test_a_server_keeps_for_its_cache_what_weights_and_sampler_leave() -> None:
    split = server_split(
        weights=16 * GIB, vocabulary=128_256, capacity=79 * GIB, gpu="H100", utilization=0.9
    )
    assert split.activation_peak == 1024 * 128_256 * 38
    assert split.weights + split.activation_peak + split.kv_cache == int(79 * GIB * 0.9)
    assert largest_batch(80 * GIB, "NVIDIA A100-SXM4-80GB") == 256
