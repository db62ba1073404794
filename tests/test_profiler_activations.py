"""What backward keeps, against a second truth: a count by ``saved_tensors_hooks``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from vramscope.profiler.activations import saved_bytes
from vramscope.profiler.demo.gpt import GPT, GPTConfig

CPU = torch.device("cpu")
Loss = Callable[[], torch.Tensor]


def cdata(tensors: list[torch.Tensor]) -> set[int]:
    return {t.untyped_storage()._cdata for t in tensors}


def by_hooks(loss: Loss, others: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Bytes that autograd asks to save, each storage once, without ``others``."""
    known = cdata(others)
    kept: dict[int, tuple[torch.UntypedStorage, int]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = (storage, storage.nbytes())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        value = loss()
    return value, sum(size for _, size in kept.values())


def gpt(dropout: float) -> tuple[nn.Module, Loss, list[torch.Tensor]]:
    model = GPT(GPTConfig(n_layer=2, n_embd=64, n_head=4, block_size=32, dropout=dropout))
    x = torch.randint(0, 256, (4, 32))
    y = torch.randint(0, 256, (4, 32))
    return model, lambda: model(x, y)[1], [x, y]


def mlp() -> tuple[nn.Module, Loss, list[torch.Tensor]]:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
    x = torch.randn(64, 1024)
    return model, lambda: model(x).sum(), [x]


def convolution() -> tuple[nn.Module, Loss, list[torch.Tensor]]:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2))
    x = torch.randn(2, 3, 16, 16)
    return model, lambda: model(x).square().mean(), [x]


def autocast() -> tuple[nn.Module, Loss, list[torch.Tensor]]:
    model, loss, inputs = gpt(0.0)

    def cast() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss()

    return model, cast, inputs


@pytest.mark.parametrize("build", [lambda: gpt(0.0), lambda: gpt(0.1), mlp, convolution, autocast])
def test_the_walk_finds_what_autograd_saves(
    build: Callable[[], tuple[nn.Module, Loss, list[torch.Tensor]]],
) -> None:
    model, loss, inputs = build()
    others = [*model.parameters(), *model.buffers(), *inputs]
    torch.manual_seed(0)
    _, expected = by_hooks(loss, others)
    torch.manual_seed(0)
    value = loss()
    assert expected > 0
    assert saved_bytes([value], cdata(others)).get(CPU, 0) == expected


def test_one_activation_saved_by_two_operators_counts_once() -> None:
    model, loss, inputs = mlp()
    value = loss()
    others = cdata([*model.parameters(), *inputs])
    assert saved_bytes([value], others)[CPU] == 64 * 4096 * 4


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_segment_counts_its_input_and_recomputes_nothing(reentrant: bool) -> None:
    calls = 0

    class Segment(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return self.layers(x)

    segment = Segment()
    x = torch.randn(256, 256, requires_grad=True)
    inner = x.clone()
    value = checkpoint(segment, inner, use_reentrant=reentrant, preserve_rng_state=False).sum()
    kept = saved_bytes([value], cdata([*segment.parameters(), x]))
    assert kept[CPU] == 262_144
    assert calls == 1


def test_attributes_of_a_custom_function_are_kept_too() -> None:
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            ctx.mask = x > 0  # type: ignore[attr-defined]
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return grad * ctx.mask  # type: ignore[attr-defined]

    x = torch.randn(1000, requires_grad=True)
    assert saved_bytes([Keeps.apply(x).sum()], cdata([x]))[CPU] == 1000


def test_the_walk_leaves_the_graph_usable() -> None:
    weight = torch.ones(8, requires_grad=True)
    loss = F.gelu(weight * 2).sum()
    saved_bytes([loss], set())
    loss.backward()
    saved_bytes([loss], set())  # freed: nothing to find, and no error
    assert weight.grad is not None
