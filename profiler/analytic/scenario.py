"""Everything that a prediction depends on, and nothing else."""

# ruff: noqa: RUF009 (setting() makes a dataclass field)
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .adapter_state import with_adapters
from .adapters import LoraSpec
from .architectures import ENCODERS, DecoderArchitecture, inventory_of
from .dtypes import DTYPE_ALIASES, HalfDtype, TensorDtype, WeightDtype
from .inference import InferenceSpec
from .inventory import TensorInventory
from .mapping import check, from_mapping, schema, setting, to_mapping
from .offload import Offload
from .optimizers import OptimizerSpec
from .sharding import Parallelism


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchShape:
    """The shape of what one forward pass of one device sees."""

    micro_batch: int = setting("Samples in one forward pass on one device.", minimum=1)
    sequence: int | None = setting(
        "Tokens in a sample; null for models that see no sequences.", None, minimum=1
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSpec:
    """What happens to the logits."""

    upcast_logits: bool | None = setting(
        "Whether 16-bit logits are copied to float32 before cross-entropy; null: as the family's "
        "own loss does (Hugging Face: yes, plain PyTorch: no).",
        None,
    )
    shifts_labels: bool | None = setting(
        "Whether the model shifts the labels itself (a copy of them is saved); null: as the "
        "family does.",
        None,
    )
    chunk_tokens: int | None = setting(
        "Tokens of each piece where head and loss run in pieces of the sequence.", None, minimum=1
    )
    keep_outputs: bool = setting(
        "Whether the training loop's variable keeps the logits (and the cache) alive until the "
        "next forward pass is over (`logits, loss = model(...)` does).",
        True,
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One device's part in training one model.

    A model is given by its ``architecture``, by its ``tensors``, or by both: then the tensors
    decide what is stored and the architecture what is saved for backward.
    """

    architecture: DecoderArchitecture | None = setting(
        "A dense decoder transformer by its sizes; needed to predict activations.", None
    )
    tensors: TensorInventory | None = setting(
        "The model's parameters and buffers; null: those of the architecture.", None
    )
    weight_dtype: WeightDtype = setting(
        "What the architecture's weights are kept in (`tensors` carry their own types).",
        "float32",
        aliases=DTYPE_ALIASES,
    )
    double_quantization: bool = setting("Whether 4-bit scales are quantised too.", False)
    autocast: HalfDtype | None = setting(
        "What autocast computes in; null: no autocast.", None, aliases=DTYPE_ALIASES
    )
    master_weights: bool = setting(
        "Whether the optimizer keeps float32 copies of 16-bit weights and works on those.", False
    )
    gradient_dtype: TensorDtype | None = setting(
        "Type of gradients where it is not the parameters' own.", None, aliases=DTYPE_ALIASES
    )
    optimizers: tuple[OptimizerSpec, ...] = setting(
        "Parameter groups as the optimizers step over them; tensors name theirs by position.",
        (OptimizerSpec(),),
    )
    batch: BatchShape | None = setting("What one forward pass sees.", None)
    accumulation: int = setting("Micro-batches in a step.", 1, minimum=1)
    checkpointing: Literal["none", "selective", "full"] = setting(
        "`full`: each block keeps its input only, and is computed again in backward. "
        "`selective`: products and attention's outputs are kept, the rest is computed again "
        "(torchtitan's per-operator policy).",
        "none",
    )
    attention: Literal["sdpa", "eager"] = setting(
        "Scaled dot-product attention as one operator, or written out.", "sdpa"
    )
    use_cache: bool = setting(
        "Whether the forward pass fills a key-value cache while training (Hugging Face's "
        "`use_cache`, on by default).",
        False,
    )
    activations_unknown: str | None = setting(
        "Why there is no architecture to predict activations from, in words.", None
    )
    dropout_active: bool = setting("Whether dropout drops (a model in training mode).", True)
    loss: LossSpec = setting("What happens to the logits.", LossSpec())
    compiled: bool = setting(
        "Whether `torch.compile` made the blocks' pointwise operators into kernels.", False
    )
    device: Literal["cuda", "cpu"] = setting("Where it runs.", "cuda")
    parallelism: Parallelism = setting("How the work is spread over devices.", Parallelism())
    offload: Offload = setting("What is kept off the device.", Offload())
    lora: LoraSpec | None = setting("Low-rank adapters that are trained instead.", None)
    inference: InferenceSpec | None = setting(
        "Generation instead of training: `batch.sequence` is then the prompt.", None
    )
    gpu: str | None = setting(
        "Name of the GPU, as the driver gives it; decides libraries' workspaces.", None
    )
    model_class: str | None = setting("Class of the model, where it is known.", None)
    notes: tuple[str, ...] = setting(
        "What a reader took where its file does not say, in words.", ()
    )

    def __post_init__(self) -> None:
        check(self)
        if self.architecture is None and self.tensors is None:
            raise ValueError("Scenario: one of architecture and tensors must be given")
        if self.tensors is None and self.architecture and self.architecture.family in ENCODERS:
            raise ValueError(
                f"Scenario.tensors: must be given with architecture.family="
                f"{self.architecture.family!r}, whose parameters are not known by its sizes"
            )
        self._check_optimizer_positions()

    def _check_optimizer_positions(self) -> None:
        if self.tensors is None:
            return
        for tensor, _ in self.tensors.counted():
            if tensor.optimizer is not None and tensor.optimizer >= len(self.optimizers):
                raise ValueError(
                    f"TensorSpec.optimizer={tensor.optimizer}: must be below "
                    f"{len(self.optimizers)}, the number of optimizers, or null"
                )

    @property
    def inventory(self) -> TensorInventory:
        """The model's parameters and buffers, given or the architecture's."""
        found = self.tensors or self._own_inventory()
        if self.lora is None or self.architecture is None:
            return found
        if len({t.trainable for t, _ in found.counted()}) > 1:
            return found  # what is trained is in the tensors already
        return with_adapters(found, self.architecture, self.lora)

    def _own_inventory(self) -> TensorInventory:
        assert self.architecture is not None
        return inventory_of(
            self.architecture, self.weight_dtype, double_quantization=self.double_quantization
        )

    def to_mapping(self) -> dict[str, object]:
        """A plain nested mapping; what is at its default is left out."""
        return to_mapping(self)

    @classmethod
    def from_mapping(cls, data: object) -> Scenario:
        """Build a scenario from a plain nested mapping, as read from YAML or JSON.

        Raises:
            ValueError: Names the field, the value and what is allowed.
        """
        return from_mapping(cls, data)

    def replace(self, **changes: object) -> Scenario:
        """The same scenario with other values in some fields, checked anew."""
        return replace(self, **changes)  # type: ignore[arg-type]


def scenario_schema() -> dict[str, object]:
    """JSON Schema (draft 2020-12) of a scenario file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vramscope scenario",
        **schema(Scenario),
        "anyOf": [{"required": ["architecture"]}, {"required": ["tensors"]}],
    }
