"""Models and loops that people really train, cut small: what measuring.py measures.

Every model is built from a transformers configuration with random weights; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Batch = dict[str, torch.Tensor]
VOCABULARY = 2048
WIDTH = 128
LAYERS = 3
BATCH = 4
TOKENS = 96


@dataclass
class Training:
    """A model, its optimizer, and how its loop is run."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[], Batch]
    autocast: torch.dtype | None = None
    micro_steps: int = 1
    checkpointed: bool = False

    def loss(self, batch: Batch) -> torch.Tensor:
        """Forward, as the loop does it."""
        context: AbstractContextManager[Any] = nullcontext()
        if self.autocast is not None:
            context = torch.autocast("cpu", self.autocast)
        with context:
            return self.model(**batch).loss / self.micro_steps


@dataclass(frozen=True)
class Combination:
    """A model and a loop by name; :meth:`build` makes them."""

    name: str
    model: Callable[[], tuple[nn.Module, Callable[[], Batch]]]
    optimizer: str
    autocast: torch.dtype | None = None
    weights: torch.dtype = torch.float32
    micro_steps: int = 1
    checkpointing: str | None = None
    lora: tuple[str, ...] = field(default=())

    def build(self) -> Training:
        """Makes model and optimizer, always with the same weights."""
        torch.manual_seed(0)
        model, batch = self.model()
        model.to(self.weights).train()
        if self.lora:
            model = with_lora(model, self.lora)
        if self.checkpointing is not None:
            reentrant = {"use_reentrant": self.checkpointing == "reentrant"}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=reentrant)  # type: ignore[operator]
            if self.lora or self.checkpointing == "reentrant":
                model.enable_input_require_grads()  # type: ignore[operator]
        return Training(
            model,
            OPTIMIZERS[self.optimizer](p for p in model.parameters() if p.requires_grad),
            batch,
            self.autocast,
            self.micro_steps,
            self.checkpointing is not None,
        )


def with_lora(model: nn.Module, targets: tuple[str, ...]) -> nn.Module:
    """Freezes the model and puts small matrices beside the layers of these names."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=8, target_modules=list(targets), lora_dropout=0.05))


OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-3, foreach=False),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, foreach=True),
    "AdamW, for-loop": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
}


def _text(**more: Callable[[], torch.Tensor]) -> Callable[[], Batch]:
    def batch() -> Batch:
        tokens = torch.randint(3, VOCABULARY, (BATCH, TOKENS))
        extra = {name: make() for name, make in more.items()}
        return {"input_ids": tokens, "labels": tokens.clone(), **extra}

    return batch


def _padded() -> torch.Tensor:
    mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
    mask[1:, TOKENS // 2 :] = 0
    return mask


def gpt2() -> tuple[nn.Module, Callable[[], Batch]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(
        vocab_size=VOCABULARY, n_positions=TOKENS, n_embd=WIDTH, n_layer=LAYERS, n_head=4
    )
    return GPT2LMHeadModel(shape), _text()


def llama() -> tuple[nn.Module, Callable[[], Batch]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=TOKENS,
    )
    return LlamaForCausalLM(shape), _text()


def bert() -> tuple[nn.Module, Callable[[], Batch]]:
    from transformers import BertConfig, BertForMaskedLM

    shape = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=TOKENS,
    )
    return BertForMaskedLM(shape), _text(attention_mask=_padded)


def t5() -> tuple[nn.Module, Callable[[], Batch]]:
    from transformers import T5Config, T5ForConditionalGeneration

    shape = T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_ff=4 * WIDTH,
        d_kv=32,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(shape), _text(attention_mask=_padded)


def vit() -> tuple[nn.Module, Callable[[], Batch]]:
    from transformers import ViTConfig, ViTForImageClassification

    shape = ViTConfig(
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        image_size=64,
        patch_size=8,
        num_labels=10,
    )

    def batch() -> Batch:
        labels = torch.randint(0, 10, (BATCH,))
        return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": labels}

    return ViTForImageClassification(shape), batch


def mixtral() -> tuple[nn.Module, Callable[[], Batch]]:
    from transformers import MixtralConfig, MixtralForCausalLM

    shape = MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=TOKENS,
        output_router_logits=True,
    )
    return MixtralForCausalLM(shape), _text()


_ATTENTION = ("q_proj", "v_proj")
_BF16 = torch.bfloat16

COMBINATIONS = (
    Combination("GPT-2", gpt2, "SGD"),
    Combination("GPT-2", gpt2, "AdamW, for-loop", autocast=_BF16),
    Combination("GPT-2", gpt2, "SGD, momentum", micro_steps=3),
    Combination("GPT-2", gpt2, "AdamW, foreach", checkpointing="reentrant"),
    Combination("Llama", llama, "AdamW, foreach"),
    Combination("Llama", llama, "AdamW, fused", weights=_BF16),
    Combination("Llama", llama, "AdamW, fused", checkpointing="non-reentrant"),
    Combination("Llama", llama, "AdamW, foreach", lora=_ATTENTION),
    Combination(
        "Llama",
        llama,
        "AdamW, fused",
        autocast=_BF16,
        checkpointing="non-reentrant",
        lora=_ATTENTION,
    ),
    Combination("BERT", bert, "AdamW, fused"),
    Combination("BERT", bert, "AdamW, foreach", autocast=_BF16, micro_steps=2),
    Combination("T5", t5, "AdamW, for-loop"),
    Combination("T5", t5, "AdamW, foreach", autocast=_BF16, checkpointing="non-reentrant"),
    Combination("ViT", vit, "AdamW, foreach"),
    Combination("ViT", vit, "SGD, momentum", autocast=_BF16),
    Combination("Mixtral", mixtral, "AdamW, foreach"),
    Combination("Mixtral", mixtral, "AdamW, fused", autocast=_BF16, micro_steps=2),
)


def title(combination: Combination) -> str:
    """The combination in words, for tables and test ids."""
    parts = [combination.name, combination.optimizer]
    if combination.weights is not torch.float32:
        parts.append("bf16 weights")
    if combination.autocast is not None:
        parts.append("autocast bf16")
    if combination.checkpointing is not None:
        parts.append(f"{combination.checkpointing} checkpointing")
    if combination.micro_steps > 1:
        parts.append(f"accumulation of {combination.micro_steps}")
    if combination.lora:
        parts.append("LoRA")
    return ", ".join(parts)
