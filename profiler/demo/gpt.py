"""A small GPT in the manner of nanoGPT: what the demo, the examples and the benchmarks train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The shape of a decoder-only transformer."""

    n_layer: int = 4
    """Number of blocks."""
    n_head: int = 4
    """Attention heads a block; must divide ``n_embd``."""
    n_embd: int = 256
    """Width of the residual stream."""
    vocab_size: int = 256
    """Number of tokens; 256 for plain bytes."""
    block_size: int = 128
    """Longest sequence, in tokens."""
    dropout: float = 0.0
    """Probability of dropping an activation, in attention and on both residual branches."""
    gradient_checkpointing: bool = False
    """Keep only each block's input for backward and compute the rest again."""

    def __post_init__(self) -> None:
        """Refuse a width that the heads do not divide."""
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd={self.n_embd} is not a multiple of n_head={self.n_head}")


class CausalSelfAttention(nn.Module):
    """Multi-head attention that looks only backwards."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, tokens, n_embd)`` to the same shape."""
        batch, tokens, width = x.shape
        query, key, value = (
            part.view(batch, tokens, self.n_head, width // self.n_head).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        attended = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        attended = attended.transpose(1, 2).contiguous().view(batch, tokens, width)
        return cast(torch.Tensor, self.resid_dropout(self.proj(attended)))


class MLP(nn.Module):
    """Four times as wide inside, GELU between."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.gelu = nn.GELU()
        self.proj = nn.Linear(4 * config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, tokens, n_embd)`` to the same shape."""
        return cast(torch.Tensor, self.dropout(self.proj(self.gelu(self.fc(x)))))


class Block(nn.Module):
    """Attention and MLP, each behind a layer norm and added to the residual stream."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, tokens, n_embd)`` to the same shape."""
        x = x + self.attn(self.ln_1(x))
        return cast(torch.Tensor, x + self.mlp(self.ln_2(x)))


class GPT(nn.Module):
    """Token and position embeddings, blocks, a last norm, and a head tied to the embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.apply(_initialise)
        self.lm_head.weight = self.wte.weight

    def forward(
        self, idx: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits ``(batch, tokens, vocab_size)``, and the mean cross-entropy if there are targets.

        Args:
            idx: Token numbers, ``(batch, tokens)``, ``tokens <= block_size``.
            targets: The tokens that follow, same shape.
        """
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(positions))
        for block in self.blocks:
            if self.config.gradient_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
