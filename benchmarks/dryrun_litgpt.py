"""Fine-tuning with adapters as LitGPT does it, for dryrun.py.

What decides memory is LitGPT's own: one matrix for queries, keys and values, adapters padded to its
width, keys and values written out for grouped queries, the head run in chunks of 128 tokens, logits
raised to float32 by Lightning's precision plugin, and a loss for each chunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNK = 128
LORA_DROPOUT = 0.05
ABSMAX_BLOCK, SECOND_BLOCK = 64, 256
"""Numbers that share a scale in bitsandbytes' 4-bit format, and scales that do."""


@dataclass(frozen=True)
class Shape:
    """A model, by the fields of a published row."""

    family: str
    layers: int
    width: int
    ffn: int
    heads: int
    groups: int
    head_width: int
    vocabulary: int
    rank: int
    quantization: str | None

    @property
    def parallel(self) -> bool:
        """Whether attention and MLP see the same input."""
        return self.family in ("phi", "gptneox", "falcon")

    @property
    def one_norm(self) -> bool:
        """Whether both share one norm."""
        return self.family in ("phi", "falcon")

    @property
    def bias(self) -> bool:
        """Whether layers have biases."""
        return self.family in ("phi", "gptneox")

    @property
    def rotated(self) -> int:
        """Numbers of a head that carry its position."""
        share = {"phi": 0.5, "gptneox": 0.25}.get(self.family, 1.0)
        return int(share * self.head_width)


FAMILIES = ("phi", "gptneox", "falcon", "llama")


class _FourBit(torch.autograd.Function):
    """bitsandbytes' MatMul4Bit until 0.43: keeps its input, and writes the weight out twice.

    Lightning quantises from float16, so the weight comes out in float16 and is then cast.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, shape: tuple[int, int]) -> Tensor:
        ctx.kept, ctx.shape = x, shape
        return functional.linear(x, _written_out(x, shape))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return gradients[0] @ _written_out(gradients[0], ctx.shape), None, None


def _written_out(like: Tensor, shape: tuple[int, int]) -> Tensor:
    return torch.empty(shape, dtype=torch.float16).to(like.dtype)


class FourBitLinear(nn.Module):
    """A frozen linear layer of 4-bit weights and their scales."""

    def __init__(self, rows: int, columns: int, bias: bool, double: bool) -> None:
        super().__init__()
        count = rows * columns
        scales = -(-count // ABSMAX_BLOCK)
        self.shape = (columns, rows)
        self.packed = nn.Parameter(torch.empty(count // 2, dtype=torch.uint8), requires_grad=False)
        kind = torch.uint8 if double else torch.float32
        self.register_buffer("absmax", torch.empty(scales, dtype=kind))
        if double:
            second = -(-scales // SECOND_BLOCK)
            self.register_buffer("absmax2", torch.empty(second, dtype=torch.float32))
            self.register_buffer("code2", torch.empty(256, dtype=torch.float32))
        self.register_buffer("code", torch.empty(16, dtype=torch.float32))
        self.bias = nn.Parameter(torch.empty(columns, dtype=torch.bfloat16)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _FourBit.apply(x, self.packed, self.shape)  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias


def linear(shape: Shape, rows: int, columns: int, bias: bool) -> nn.Module:
    """A pretrained layer, quantised where the row says so."""
    if shape.quantization is not None:
        return FourBitLinear(rows, columns, bias, shape.quantization.endswith("dq"))
    return nn.Linear(rows, columns, bias=bias)


class QueryKeyValue(nn.Module):
    """The joint matrix with adapters on queries and values."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.parts = (shape.heads * shape.head_width, shape.groups * shape.head_width)
        self.columns = (shape.heads + 2 * shape.groups) * shape.head_width
        self.linear = linear(shape, shape.width, self.columns, shape.bias)
        self.lora_a = nn.Parameter(torch.empty(2 * shape.rank, shape.width))
        self.lora_b = nn.Parameter(torch.empty(sum(self.parts), shape.rank))
        self.register_buffer("lora_index", torch.zeros(sum(self.parts), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        pretrained = self.linear(x)
        after_a = functional.linear(functional.dropout(x, LORA_DROPOUT), self.lora_a)
        after_b = self._by_parts(after_a.transpose(-2, -1), self.lora_b.unsqueeze(-1))
        padded = after_b.new_zeros(*x.shape[:-1], self.columns)
        padded = padded.index_copy(-1, self.lora_index, after_b.transpose(-2, -1))
        return pretrained + padded * 2.0

    def _by_parts(self, a: Tensor, b: Tensor) -> Tensor:
        if self.shape.heads == self.shape.groups:
            return functional.conv1d(a, b, groups=2)
        pairs = zip(a.chunk(2, dim=1), b.split(self.parts), strict=True)
        return torch.cat([functional.conv1d(one, other) for one, other in pairs], dim=1)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attn = QueryKeyValue(shape)
        self.proj = linear(shape, shape.heads * shape.head_width, shape.width, shape.bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, _ = x.shape
        s = self.shape
        each = s.heads // s.groups
        qkv = self.attn(x).view(b, t, s.groups, each + 2, s.head_width).permute(0, 2, 3, 1, 4)
        q, k, v = qkv.split((each, 1, 1), dim=2)
        if s.groups != s.heads:
            k, v = (part.expand(b, s.groups, each, t, s.head_width) for part in (k, v))
        q, k, v = (part.reshape(b, -1, t, s.head_width) for part in (q, k, v))
        q, k = (self._with_position(part, cos, sin) for part in (q, k))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, s.heads * s.head_width))

    def _with_position(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n = self.shape.rotated
        part = x[..., :n]
        turned = torch.cat((-part[..., n // 2 :], part[..., : n // 2]), dim=-1)
        roped = (part * cos + turned * sin).to(x.dtype)
        return torch.cat((roped, x[..., n:]), dim=-1)


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gated = shape.family == "llama"
        self.approximate = "tanh" if shape.family == "phi" else "none"
        self.fc_1 = linear(shape, shape.width, shape.ffn, shape.bias)
        self.fc_2 = linear(shape, shape.width, shape.ffn, shape.bias) if self.gated else None
        self.proj = linear(shape, shape.ffn, shape.width, shape.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.fc_2 is None:
            return self.proj(functional.gelu(self.fc_1(x), approximate=self.approximate))
        first, second = self.fc_1(x), self.fc_2(x)
        return self.proj(functional.silu(first) * second)


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.float()
        mean = torch.mean(x * x, dim=-1, keepdim=True)
        return (x * torch.rsqrt(mean + 1e-5)).to(dtype) * self.weight


def norm(shape: Shape) -> nn.Module:
    """The family's norm."""
    return RmsNorm(shape.width) if shape.family == "llama" else nn.LayerNorm(shape.width)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.parallel = shape.parallel
        self.norm_1 = norm(shape)
        self.attn = Attention(shape)
        self.norm_2 = None if shape.one_norm else norm(shape)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.norm_1(x)
        attended = self.attn(normed, cos, sin)
        if self.parallel:
            normed = normed if self.norm_2 is None else self.norm_2(x)
            return self.mlp(normed) + attended + x
        x = attended + x
        assert self.norm_2 is not None
        return self.mlp(self.norm_2(x)) + x


class Gpt(nn.Module):
    def __init__(self, shape: Shape, longest: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(shape.vocabulary, shape.width)
        self.h = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.ln_f = norm(shape)
        self.lm_head = linear(shape, shape.width, shape.vocabulary, shape.family == "phi")
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(longest, shape.rotated))

    def forward(self, tokens: Tensor) -> list[Tensor]:
        t = tokens.shape[1]
        x = self.wte(tokens)
        for block in self.h:
            x = block(x, self.cos[:t], self.sin[:t])
        return [self.lm_head(part) for part in self.ln_f(x).split(CHUNK, dim=1)]


def build(shape: Shape, longest: int) -> nn.Module:
    """The model in bfloat16, with only its adapters to train."""
    model = Gpt(shape, longest)
    for module in model.modules():
        if not isinstance(module, FourBitLinear):
            for name, parameter in module.named_parameters(recurse=False):
                trains = name.startswith("lora_")
                cast = nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=trains)
                setattr(module, name, cast)
    for name in ("cos", "sin"):
        setattr(model, name, getattr(model, name).to(torch.bfloat16))
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.requires_grad and parameter.dtype.is_floating_point)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return model


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW as torch runs it on a GPU."""
    return torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.02)


def step(micro_batch: int, sequence: int, model: nn.Module, optimizer: Any) -> None:
    """One step of LitGPT's fine-tuning loop."""
    tokens = torch.randint(0, 1000, (micro_batch, sequence))
    targets = torch.randint(0, 1000, (micro_batch, sequence))
    logits = [part.float() for part in model(tokens)]  # Lightning's precision plugin
    logits[-1] = logits[-1][..., :-1, :]
    pieces = targets[..., 1:].split(CHUNK, dim=1)
    losses = [
        functional.cross_entropy(
            part.reshape(-1, part.shape[-1]), piece.reshape(-1), reduction="none"
        )
        for part, piece in zip(logits, pieces, strict=True)
    ]
    loss = torch.cat(losses).sum() / targets.numel()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
