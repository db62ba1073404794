"""What of a model lies on one device when its matrices and its layers are shared out."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .dtypes import ceil_div
from .inventory import TensorBlock, TensorInventory, TensorSpec
from .scenario import Scenario

MEGATRON_SOURCE = "Megatron-LM, arXiv 1909.08053: matrices and the vocabulary are cut in t parts"


def local_part(scenario: Scenario) -> Scenario:
    """The same scenario with this device's tensors: a ``t``-th of each matrix, a stage's layers.

    The first pipeline stage is taken, which has most micro-batches in flight: the embedding and
    ``⌈L/p⌉`` layers. Vectors (norms, biases) are kept whole by every device.
    """
    parallelism = scenario.parallelism
    t, p = parallelism.tensor_parallel, parallelism.pipeline_parallel
    if t == p == 1:
        return scenario
    found = scenario.inventory
    blocks = _first_stage(found, p) if p > 1 else found.blocks
    cut = tuple(
        TensorBlock(tensors=tuple(_slice(x, t) for x in b.tensors), repeat=b.repeat) for b in blocks
    )
    return scenario.replace(tensors=replace(found, blocks=cut))


def _first_stage(inventory: TensorInventory, stages: int) -> tuple[TensorBlock, ...]:
    """Blocks up to the repeated ones, of which a part; one stage's share where none repeat."""
    stage: list[TensorBlock] = []
    for block in inventory.blocks:
        if block.repeat > 1:
            return (*stage, replace(block, repeat=ceil_div(block.repeat, stages)))
        stage.append(block)
    return inventory.blocks


@lru_cache(maxsize=4096)
def _slice(tensor: TensorSpec, parts: int) -> TensorSpec:
    if len(tensor.shape) < 2 or parts == 1:
        return tensor
    first, *rest = tensor.shape
    held = tensor.storage_bytes
    return replace(
        tensor,
        shape=(ceil_div(first, parts), *rest),
        storage_bytes=None if held is None else ceil_div(held, parts),
    )
