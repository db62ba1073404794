"""The Transformer of Stanford's CS336 and its AdamW, for dryrun.py: all of it written out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """A model, by the fields of a published row."""

    layers: int
    width: int
    ffn: int
    heads: int
    vocabulary: int
    context: int


class Linear(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(columns, rows))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (self.weight * x).to(dtype)


def softmax(x: Tensor) -> Tensor:
    """Over the last dimension, written out."""
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]  # held, as in the course's own function
    powers = torch.exp(shifted)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.width = shape.width // shape.heads
        self.q, self.k, self.v, self.out = (Linear(shape.width, shape.width) for _ in range(4))
        self.register_buffer("angles", torch.empty(2, shape.context, self.width // 2))

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (
            part(x).view(b, t, self.heads, self.width).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = self._turned(q), self._turned(k)
        places = torch.arange(t)
        mask = (places[:, None] >= places[None, :])[None, None]
        scores = torch.einsum("...qd,...kd->...qk", q, k) / self.width**0.5
        scores = torch.where(mask, scores, float("-inf"))
        attended = torch.einsum("...qk,...kd->...qd", softmax(scores), v)
        return self.out(attended.transpose(1, 2).reshape(b, t, -1).contiguous())

    def _turned(self, x: Tensor) -> Tensor:
        cos, sin = self.angles[:, torch.arange(x.shape[-2])]
        first, second = x.view(*x.shape[:-1], -1, 2).unbind(-1)
        turned = (cos * first - sin * second, sin * first + cos * second)
        return torch.stack(turned, dim=-1).flatten(-2).contiguous()


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attn = Attention(shape)
        self.w1, self.w3 = Linear(shape.width, shape.ffn), Linear(shape.width, shape.ffn)
        self.w2 = Linear(shape.ffn, shape.width)
        self.ln1, self.ln2 = RmsNorm(shape.width), RmsNorm(shape.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        y = self.ln2(x)
        gate = self.w1(y)
        return x + self.w2(gate * torch.sigmoid(gate) * self.w3(y))


class Transformer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embeddings = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        angles = torch.empty(2, shape.context, shape.width // shape.heads // 2)
        for layer in self.layers:
            layer.attn.angles = angles  # one encoder serves all layers
        self.ln_final = RmsNorm(shape.width)
        self.lm_head = Linear(shape.width, shape.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embeddings[tokens]
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.ln_final(x))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens, written out."""
    shifted = logits - torch.max(logits, dim=-1, keepdim=True)[0]
    chosen = torch.gather(shifted, -1, targets.unsqueeze(-1)).squeeze(-1)
    return (torch.log(torch.sum(torch.exp(shifted), dim=-1)) - chosen).mean()


class AdamW(torch.optim.Optimizer):
    """The course's: tensor by tensor, moments made anew at every step."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                first = state.get("m", torch.zeros_like(p))
                second = state.get("v", torch.zeros_like(p))
                first = 0.9 * first + 0.1 * p.grad
                second = 0.95 * second + 0.05 * torch.square(p.grad)
                p -= 1e-3 * first / (torch.sqrt(second) + 1e-8)
                p -= 1e-5 * p
                state["m"], state["v"] = first, second


def step(
    micro_batch: int, shape: Shape, autocast: bool, model: nn.Module, optimizer: Any = None
) -> None:
    """One step; without an optimizer, a forward pass without gradients."""
    cast = torch.autocast("cuda", torch.bfloat16) if autocast else contextlib.nullcontext()
    tokens = torch.randint(0, shape.vocabulary, (micro_batch, shape.context))
    if optimizer is None:
        with torch.no_grad(), cast:
            model(tokens)
        return
    targets = torch.randint(0, shape.vocabulary, (micro_batch, shape.context))
    optimizer.zero_grad()
    with cast:
        logits = model(tokens)
        loss = cross_entropy(logits, targets)
    loss.backward()
    optimizer.step()  # the loop's variable still holds the logits
    del logits
