"""What an optimizer keeps for each parameter, and what its step holds for a moment."""

# ruff: noqa: RUF009 (setting() makes a dataclass field)
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from .dtypes import ceil_div
from .inventory import TensorSpec
from .mapping import check, setting

OptimizerName = Literal[
    "sgd",
    "adam",
    "adamw",
    "adagrad",
    "rmsprop",
    "adafactor",
    "lion",
    "lamb",
    "muon",
    "lomo",
    "adam8bit",
    "adamw8bit",
    "lion8bit",
    "adamw4bit",
    "other",
]
Implementation = Literal["foreach", "for-loop", "fused"]

EIGHT_BIT: frozenset[str] = frozenset({"adam8bit", "adamw8bit", "lion8bit"})
LIKE_PARAMETER: dict[str, tuple[str, ...]] = {
    "adagrad": ("sum of squares",),
    "rmsprop": ("mean of squares",),
    "lion": ("first moment",),
    "lamb": ("first moment", "second moment"),
}
"""What optimizers keep that is like the parameter, beside Adam and SGD."""
BLOCK_4BIT_STATE = 128
"""Elements that share one scale in torchao's 4-bit states."""
SMALLEST_8BIT = 4096
"""Tensors with fewer elements keep 32-bit state (bitsandbytes ``min_8bit_size``)."""
SMALLEST_PAGED = 100_000
"""Elements from which on paged state lies in managed memory (bitsandbytes ``get_state_buffer``)."""
BLOCK_8BIT = 256
"""Elements that share one scale in an 8-bit state."""
QUANTILE_MAPS = 2048
"""Bytes of the two code books (signed and unsigned) that all 8-bit states of an optimizer share."""

TORCH_SOURCE = "torch 2.13 torch/optim/{file}, checked against its tensors byte for byte"
STATE_SOURCES: dict[str, str] = {
    "lion": "lion-pytorch lion_pytorch.py: exp_avg",
    "lamb": "LAMB, arXiv 1904.00962: two moments like Adam's",
    "muon": "Muon, kellerjordan.github.io/posts/muon: a momentum for matrices, AdamW for the rest",
    "lomo": "LOMO, arXiv 2306.09782: no state, each gradient is used where it is made",
    "adamw4bit": "torchao optim/adam.py AdamW4bit: 4 bits an element, a float32 scale for 128",
    "adafactor": "transformers optimization.py Adafactor: float32 row and column means of squares",
}
BNB_SOURCE = "bitsandbytes 0.50 optim/optimizer.py Optimizer2State, checked byte for byte"


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSpec:
    """One parameter group of an optimizer, as its step runs."""

    name: OptimizerName = setting(
        "Which optimizer. `other`: parameters and gradients are predicted, its state is not.",
        "adamw",
    )
    class_name: str | None = setting("Class of an optimizer named `other`.", None)
    implementation: Implementation = setting(
        "How the step runs: all tensors at once (torch's default on CUDA), one after another "
        "(torch's default on a CPU), or in one kernel.",
        "foreach",
        aliases={"for_loop": "for-loop", "forloop": "for-loop", "single": "for-loop"},
    )
    momentum: float = setting("Momentum of SGD.", 0.0, minimum=0)
    nesterov: bool = setting("Nesterov momentum of SGD.", False)
    amsgrad: bool = setting("Whether Adam keeps the largest second moment too.", False)
    weight_decay: float = setting("Weight decay.", 0.0, minimum=0)
    maximize: bool = setting("Whether the step ascends.", False)
    capturable: bool = setting("Whether Adam's step counters lie on the device.", False)
    paged: bool = setting("State in managed memory (bitsandbytes Paged*).", False)
    in_backward: bool = setting(
        "Whether each parameter is stepped, and its gradient dropped, as soon as that is there.",
        False,
    )
    partitioned: bool = setting(
        "Whether data-parallel ranks keep the states of whole parameters each (torch's "
        "ZeroRedundancyOptimizer).",
        False,
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def is_adam(self) -> bool:
        """Whether it is torch's Adam or AdamW."""
        return self.name in ("adam", "adamw")

    @property
    def steps_on_device(self) -> bool:
        """Whether Adam's step counters are tensors on the parameters' device, not on the CPU."""
        return self.capturable or self.implementation == "fused"


@dataclass(frozen=True, slots=True)
class StateStorage:
    """One kind of storage that an optimizer keeps for a parameter."""

    name: str
    nbytes: int
    on_device: bool = True
    source: str = TORCH_SOURCE


@lru_cache(maxsize=4096)
def state_storages(
    tensor: TensorSpec, optimizer: OptimizerSpec, *, device: str
) -> tuple[StateStorage, ...]:
    """What the optimizer keeps for one trainable parameter after its first step.

    torch: SGD nothing, with momentum one tensor like the parameter; Adam and AdamW two, with
    ``amsgrad`` three, and a 4-byte step counter that lies on the CPU unless ``fused`` or
    ``capturable``. bitsandbytes: see :func:`eight_bit_storages`.
    """
    if optimizer.name in EIGHT_BIT:
        packed = eight_bit_storages(tensor, paged=optimizer.paged and device == "cuda")
        lion = optimizer.name == "lion8bit"
        return tuple(k for k in packed if "second" not in k.name) if lion else packed
    if optimizer.name in LIKE_PARAMETER:
        default = TORCH_SOURCE.format(file=f"{optimizer.name}.py")
        source = STATE_SOURCES.get(optimizer.name, default)
        names = LIKE_PARAMETER[optimizer.name]
        return tuple(StateStorage(name, tensor.nbytes, source=source) for name in names)
    if optimizer.name in _OWN_STATE:
        return _OWN_STATE[optimizer.name](tensor)
    if optimizer.name == "sgd":
        source = TORCH_SOURCE.format(file="sgd.py")
        if not optimizer.momentum:
            return ()
        return (StateStorage("momentum", tensor.nbytes, source=source),)
    if not optimizer.is_adam:
        return ()
    source = TORCH_SOURCE.format(file="adam.py")
    on_device = device == "cpu" or optimizer.steps_on_device
    managed = optimizer.paged and device == "cuda" and tensor.numel >= SMALLEST_PAGED
    kept = ["first moment", "second moment", *(["largest second moment"] * optimizer.amsgrad)]
    return (
        *(StateStorage(name, tensor.nbytes, not managed, source) for name in kept),
        StateStorage("step counters", 4, on_device=on_device, source=source),
    )


def _muon(tensor: TensorSpec) -> tuple[StateStorage, ...]:
    """A momentum for matrices; embeddings' rows are matrices too, so this is a lower bound."""
    names = ("momentum",) if len(tensor.shape) > 1 else ("first moment", "second moment")
    return tuple(StateStorage(n, tensor.nbytes, source=STATE_SOURCES["muon"]) for n in names)


def _adafactor(tensor: TensorSpec) -> tuple[StateStorage, ...]:
    """Row and column means for what has two dimensions, else one mean of squares; float32."""
    source = STATE_SOURCES["adafactor"]
    if len(tensor.shape) < 2:
        return (StateStorage("mean of squares", 4 * tensor.numel, source=source),)
    *stack, rows, columns = tensor.shape
    outer = math.prod(stack)
    return (
        StateStorage("row means", 4 * outer * rows, source=source),
        StateStorage("column means", 4 * outer * columns, source=source),
    )


def _four_bit(tensor: TensorSpec) -> tuple[StateStorage, ...]:
    """torchao: tensors of at least 4096 elements, a multiple of 128, are packed."""
    n, source = tensor.numel, STATE_SOURCES["adamw4bit"]
    moments = ("first moment", "second moment")
    if n < SMALLEST_8BIT or n % BLOCK_4BIT_STATE:
        return tuple(StateStorage(name, tensor.nbytes, source=source) for name in moments)
    packed = ceil_div(n, 2) + 4 * (n // BLOCK_4BIT_STATE)
    return tuple(StateStorage(f"{name}, 4-bit", packed, source=source) for name in moments)


def _nothing(tensor: TensorSpec) -> tuple[StateStorage, ...]:
    del tensor
    return ()


_OWN_STATE: dict[str, Callable[[TensorSpec], tuple[StateStorage, ...]]] = {
    "muon": _muon,
    "adafactor": _adafactor,
    "adamw4bit": _four_bit,
    "lomo": _nothing,
}


def eight_bit_storages(tensor: TensorSpec, *, paged: bool) -> tuple[StateStorage, ...]:
    """State of bitsandbytes' 8-bit Adam for one parameter of ``n`` elements.

    ``n < 4096``: two float32 moments, ``8·n``. Otherwise two of one byte an element and a float32
    scale for each 256 elements: ``2·(n + 4·⌈n/256⌉)``. Paged state (``n ≥ 100,000``) lies in
    managed memory, outside the allocator. The step counter is a Python number.
    """
    n = tensor.numel
    bits = tensor.state_bits or (8 if n >= SMALLEST_8BIT else 32)
    device = not (paged and n >= SMALLEST_PAGED)
    if bits == 32:
        return tuple(
            StateStorage(name, 4 * n, device, BNB_SOURCE)
            for name in ("first moment", "second moment")
        )
    scales = 4 * ceil_div(n, BLOCK_8BIT)
    return (
        StateStorage("first moment, 8-bit", n, device, BNB_SOURCE),
        StateStorage("second moment, 8-bit", n, device, BNB_SOURCE),
        StateStorage("scales of the first moment", scales, True, BNB_SOURCE),
        StateStorage("scales of the second moment", scales, True, BNB_SOURCE),
    )


@dataclass(frozen=True, slots=True)
class StepTemporaries:
    """What a step holds beside the state, at its own peak."""

    nbytes: int
    formula: str
    source: str = TORCH_SOURCE
    storages: tuple[int, ...] = ()
    """Bytes of each storage, where there are several."""


def step_temporaries(tensors: Sequence[TensorSpec], optimizer: OptimizerSpec) -> StepTemporaries:
    """Largest temporary of the step over one parameter group.

    ``foreach``: a list as large as the largest group of one dtype (Adam: ``exp_avg_sq.sqrt()``;
    SGD: gradients with the weight decay added). For-loop: of one parameter at a time, while the
    last parameter's ``denom`` is still bound. Fused: none.

    Args:
        tensors: The trainable parameters of the group, in order.
        optimizer: Its settings.
    """
    if optimizer.implementation == "fused" or not tensors:
        return StepTemporaries(0, "fused: 0")
    if optimizer.name in EIGHT_BIT or optimizer.name in ("other", "lomo"):
        return StepTemporaries(0, "one kernel a tensor: 0", BNB_SOURCE)
    if optimizer.name in _ONE_BY_ONE:
        copies, source = _ONE_BY_ONE[optimizer.name], STATE_SOURCES[optimizer.name]
        elements = max(t.numel for t in tensors)
        return StepTemporaries(4 * copies * elements, f"{copies} × 4 B × {elements:,}", source)
    if optimizer.in_backward:
        return _alone(max(tensors, key=lambda t: t.nbytes), optimizer)
    file = "adam" if optimizer.is_adam else optimizer.name
    source = TORCH_SOURCE.format(file=f"{file}.py")
    if optimizer.implementation == "foreach":
        return _foreach_temporaries(tensors, optimizer, source)
    sizes = [t.nbytes for t in tensors]
    copies = _copies_for_one(optimizer)
    carried = 1 if optimizer.is_adam else 0
    pairs = [(0, sizes[0]), *pairwise(sizes)]
    before, largest = max(pairs, key=lambda pair: copies * pair[1] + carried * pair[0])
    if not copies:
        return StepTemporaries(0, "in place: 0", source)
    formula = f"{copies} × {largest:,} B" + (f" + {before:,} B" if carried and before else "")
    return StepTemporaries(copies * largest + carried * before, formula, source)


_ONE_BY_ONE: dict[str, int] = {"lion": 1, "lamb": 2, "muon": 3, "adafactor": 2, "adamw4bit": 2}
"""Float32 copies of one parameter that steps without a list of all of them make."""


def _alone(tensor: TensorSpec, optimizer: OptimizerSpec) -> StepTemporaries:
    """The step of one parameter by itself."""
    copies = 1 if optimizer.implementation == "foreach" else _copies_for_one(optimizer)
    formula = f"{copies} × {tensor.nbytes:,} B: the largest parameter by itself"
    return StepTemporaries(copies * tensor.nbytes, formula, TORCH_SOURCE.format(file="adam.py"))


def _foreach_temporaries(
    tensors: Sequence[TensorSpec], optimizer: OptimizerSpec, source: str
) -> StepTemporaries:
    if optimizer.name == "sgd" and not (optimizer.weight_decay or optimizer.maximize):
        return StepTemporaries(0, "in place: 0", source)
    by_dtype: dict[str, list[int]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor.nbytes)
    # The list of one dtype stays bound until the next one's is made.
    largest = sorted(by_dtype.values(), key=sum, reverse=True)[:2]
    formula = " + ".join(f"{sum(sizes):,} B" for sizes in largest)
    storages = tuple(n for sizes in largest for n in sizes)
    return StepTemporaries(sum(storages), formula, source, storages)


def _copies_for_one(optimizer: OptimizerSpec) -> int:
    """How many tensors like the parameter the for-loop step makes for it at once."""
    decayed = 1 if optimizer.weight_decay or optimizer.maximize else 0
    if optimizer.name == "sgd":
        both = decayed and optimizer.nesterov and optimizer.momentum
        return 2 if both else max(decayed, 1 if optimizer.nesterov else 0)
    if optimizer.name == "adamw":
        decayed = 1 if optimizer.maximize else 0
    return 2 + decayed


def of_group(tensors: Sequence[TensorSpec], position: int) -> Iterator[TensorSpec]:
    """The trainable parameters that the optimizer group at ``position`` updates."""
    return (t for t in tensors if t.trainable and t.optimizer == position)
