"""A forward pass written down operator by operator: which storages backward will need.

Blocks are written like model code against a :class:`Tape`. Every operator notes what its
backward formula keeps; a storage kept by two operators counts once, as it does in torch. Shapes
are names (``b`` samples, ``s`` tokens, ``h`` width …), so that a term can print its formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .dtypes import ITEM_BYTES, round_up

Dims = tuple[str, ...]
HALF = frozenset({"bfloat16", "float16"})


@dataclass(eq=False, slots=True)
class Storage:
    """Bytes that tensors share."""

    label: str
    dims: Dims
    dtype: str
    nbytes: int


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A tensor of the forward pass; two views of one storage are two values."""

    storage: Storage
    dims: Dims
    dtype: str


@dataclass(frozen=True, slots=True)
class Op:
    """One operator: what it reads and makes, what it keeps, what its backward makes."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    saved: tuple[Storage, ...] = ()
    copies: tuple[Storage, ...] = ()
    """16-bit copies of weights that it keeps."""
    weight_gradient: int = 0
    """Bytes of the gradients of its parameters, in the parameters' type."""
    weight_temporary: int = 0
    """Bytes of the same gradients in 16 bit, where autocast made them before the cast."""
    cached_bias: int = 0
    """Bytes of a 16-bit bias that autocast's cache holds until the context is left."""
    passes_gradient: bool = False
    """Its inputs' gradients are its output's own (views, additions)."""
    scratch: int = 0
    """Bytes that its backward needs beside its result."""
    work: int = 0
    """Bytes that its forward needs beside its result."""
    kind: str = ""
    """``product`` of a matrix, or ``attention``: what selective checkpointing asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterPlan:
    """Low-rank adapters as the tape sees them."""

    rank: int
    dtype: str
    dropout: float
    roles: frozenset[str]
    """Which matrices have one, by what they make (``query``, ``down`` …)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """What decides types and what is kept: the model's own, autocast, and where it runs."""

    dtype: str
    autocast: str | None
    device: str
    dropout_active: bool
    offset_norms: bool = False
    """Gemma's RMS norms: the weight is ``1 + w`` in float32, and the cast comes last."""
    compiled: bool = False
    """``torch.compile``: what lies between products is one kernel, and is computed again."""
    frozen: bool = False
    """The model's own parameters get no gradients, so that their layers keep no inputs."""
    adapters: AdapterPlan | None = None
    quantised: bool = False
    """The blocks' matrices are written out in 16 bit whenever they are used."""
    quantised_head: bool = False
    quantised_keeps_input: bool = False
    """bitsandbytes until 0.42: a 4-bit product keeps its input although its weight is frozen."""
    quantised_copies: int = 1
    """Copies of a matrix that is written out: 2 where it is cast once more (Lightning quantises
    float16, and computes in bfloat16)."""

    @property
    def on_cuda(self) -> bool:
        """Whether CUDA's operators run."""
        return self.device == "cuda"


@dataclass(slots=True)
class Tape:
    """Operators in the order of the forward pass.

    Args:
        sizes: What each name of a dimension stands for.
        numerics: Types and device.
    """

    sizes: Mapping[str, int]
    numerics: Numerics
    ops: list[Op] = field(default_factory=list)

    # -- storages -----------------------------------------------------------------------------

    def numel(self, dims: Dims) -> int:
        """Number of elements of a shape given by names."""
        total = 1
        for name in dims:
            total *= self.sizes[name]
        return total

    def storage(self, label: str, dims: Dims, dtype: str) -> Storage:
        """A new storage."""
        return Storage(label, dims, dtype, self.numel(dims) * ITEM_BYTES[dtype])

    def value(self, label: str, dims: Dims, dtype: str) -> Value:
        """A new tensor in a storage of its own."""
        return Value(self.storage(label, dims, dtype), dims, dtype)

    def note(self, *inputs: Value, out: Sequence[Value], **details: object) -> None:
        """Write an operator down."""
        self.ops.append(Op(inputs, tuple(out), **details))  # type: ignore[arg-type]

    # -- operators ----------------------------------------------------------------------------

    def cast(self, x: Value, dtype: str) -> Value:
        """``x.to(dtype)``: keeps nothing; no operator at all when it has the type."""
        if x.dtype == dtype:
            return x
        out = self.value(x.storage.label, x.dims, dtype)
        self.note(x, out=[out])
        return out

    def lower(self, x: Value) -> Value:
        """What autocast hands to an operator of its 16-bit list."""
        autocast = self.numerics.autocast
        return self.cast(x, autocast) if autocast and x.dtype == "float32" else x

    def upper(self, x: Value, *, cuda_only: bool = False) -> Value:
        """What autocast hands to an operator of its float32 list."""
        active = self.numerics.autocast and (self.numerics.on_cuda or not cuda_only)
        return self.cast(x, "float32") if active else x

    def view(self, x: Value, dims: Dims) -> Value:
        """Another shape over the same storage."""
        out = Value(x.storage, dims, x.dtype)
        self.note(x, out=[out], passes_gradient=True)
        return out

    def copy(self, x: Value, label: str, dims: Dims | None = None) -> Value:
        """A tensor of its own with the same elements (``contiguous``, ``cat``, expansion)."""
        out = self.value(label, dims or x.dims, x.dtype)
        self.note(x, out=[out])
        return out

    def split(self, x: Value, parts: Sequence[Dims]) -> tuple[Value, ...]:
        """Views of one storage; their gradients are joined in a new one."""
        outs = tuple(Value(x.storage, dims, x.dtype) for dims in parts)
        self.note(x, out=outs)
        return outs

    def add(self, a: Value, b: Value, label: str) -> Value:
        """``a + b``: keeps nothing, hands its gradient on."""
        out = self.value(label, a.dims, promoted(a.dtype, b.dtype))
        self.note(a, b, out=[out], passes_gradient=a.dtype == b.dtype)
        return out

    def scale(self, x: Value, label: str) -> Value:
        """``x`` times (or plus) a number: a new tensor, nothing kept."""
        out = self.value(label, x.dims, x.dtype)
        self.note(x, out=[out])
        return out

    def multiply(self, a: Value, b: Value, label: str) -> Value:
        """``a * b`` of two tensors with gradients: keeps both."""
        out = self.value(label, a.dims, promoted(a.dtype, b.dtype))
        self.note(a, b, out=[out], saved=(a.storage, b.storage))
        return out

    def unary(
        self,
        x: Value,
        label: str,
        *,
        keeps_input: bool = False,
        keeps_output: bool = False,
        dims: Dims | None = None,
    ) -> Value:
        """A function of one tensor, keeping its input, its output or neither."""
        out = self.value(label, dims or x.dims, x.dtype)
        kept = [x.storage] * keeps_input + [out.storage] * keeps_output
        self.note(x, out=[out], saved=tuple(kept))
        return out

    def weighted(self, x: Value, width: str, label: str) -> Value:
        """``weight * x`` with a vector of parameters: keeps ``x``."""
        weight_dtype = self.numerics.dtype
        out = self.value(label, x.dims, promoted(x.dtype, weight_dtype))
        if self.numerics.frozen:
            self.note(x, out=[out])
            return out
        gradient = self.sizes[width] * ITEM_BYTES[weight_dtype]
        self.note(
            x, out=[out], saved=(x.storage,), weight_gradient=gradient, scratch=x.storage.nbytes
        )
        return out

    def linear(
        self,
        x: Value,
        inside: str,
        outside: str,
        label: str,
        *,
        bias: bool,
        out: Dims,
        role: str = "",
    ) -> Value:
        """``x @ W + b``: keeps its input, and under autocast the weight's 16-bit copy.

        A frozen one keeps nothing; where ``role`` is a target of the adapters, theirs is added.
        """
        result = self._own_product(x, inside, outside, label, bias=bias, out=out, role=role)
        plan = self.numerics.adapters
        if plan is None or role not in plan.roles:
            return result
        return self._adapted(plan, x, result, inside, outside)

    def _own_product(
        self, x: Value, inside: str, outside: str, label: str, *, bias: bool, out: Dims, role: str
    ) -> Value:
        x = self.lower(x)
        numerics = self.numerics
        weight = self.sizes[inside] * self.sizes[outside]
        elements = weight + (self.sizes[outside] if bias else 0)
        result = self.value(label, out, x.dtype)
        packed = numerics.quantised_head if role == "head" else numerics.quantised
        if packed:
            written = numerics.quantised_copies * weight * ITEM_BYTES[x.dtype]
            kept = (x.storage,) if numerics.quantised_keeps_input else ()
            self.note(x, out=[result], saved=kept, work=written, scratch=written, kind="product")
            return result
        own, autocast = numerics.dtype, numerics.autocast
        copies: tuple[Storage, ...] = ()
        temporary = 0
        if autocast and own == "float32":
            copies = (self.storage("16-bit weights", (inside, outside), autocast),)
            temporary = 2 * elements
        if numerics.frozen:
            self.note(x, out=[result], copies=copies, kind="product")
            return result
        self.note(
            x,
            out=[result],
            saved=(x.storage,),
            copies=copies,
            weight_gradient=elements * ITEM_BYTES[own],
            weight_temporary=temporary,
            cached_bias=2 * self.sizes[outside] if copies and bias else 0,
            kind="product",
        )
        return result

    def _adapted(
        self, plan: AdapterPlan, x: Value, result: Value, inside: str, outside: str
    ) -> Value:
        """PEFT's ``result + B(A(dropout(x))) * scaling``, in the adapters' type.

        The input is cast to that type, the sum back to the layer's.
        """
        wide = self.lower(x) if self.numerics.autocast else self.cast(x, plan.dtype)
        dropped = self.dropout(wide, plan.dropout, "adapters' inputs, dropped")
        low = self.value("adapters' inner values", (*x.dims[:-1], "r"), dropped.dtype)
        item = ITEM_BYTES[plan.dtype]
        gradient = self.sizes[inside] * plan.rank * item
        self.note(dropped, out=[low], saved=(dropped.storage,), weight_gradient=gradient)
        high = self.value("adapters' outputs", result.dims, dropped.dtype)
        gradient = self.sizes[outside] * plan.rank * item
        self.note(low, out=[high], saved=(low.storage,), weight_gradient=gradient)
        scaled = self.scale(high, "adapters' outputs")
        total = self.add(result, scaled, result.storage.label)
        return self.cast(total, result.dtype)

    def layer_norm(self, x: Value, width: str, label: str, *, bias: bool) -> Value:
        """Keeps its input and each row's mean and inverse deviation.

        The statistics are float32 on CUDA, and of the input's type on a CPU.
        """
        x = self.upper(x, cuda_only=True)
        statistics = "float32" if self.numerics.on_cuda else x.dtype
        rows = x.dims[:-1]
        kept = tuple(
            self.storage("mean and deviation of layer norms", rows, statistics) for _ in range(2)
        )
        out = self.value(label, x.dims, x.dtype)
        elements = self.sizes[width] * (2 if bias else 1)
        gradient = 0 if self.numerics.frozen else elements * ITEM_BYTES[self.numerics.dtype]
        self.note(x, out=[out], saved=(x.storage, *kept), weight_gradient=gradient)
        return out

    def dropout(self, x: Value, probability: float, label: str) -> Value:
        """Keeps a mask: one byte an element on CUDA, the input's type on a CPU."""
        if not probability or not self.numerics.dropout_active:
            return x
        mask = self.storage("dropout masks", x.dims, "bool" if self.numerics.on_cuda else x.dtype)
        out = self.value(label, x.dims, x.dtype)
        self.note(x, out=[out], saved=(mask,))
        return out

    def matmul(self, a: Value, b: Value, label: str, out: Dims) -> Value:
        """Product of two batches of matrices: keeps both, each laid out in one piece."""
        a, b = self.lower(a), self.lower(b)
        result = self.value(label, out, a.dtype)
        self.note(a, b, out=[result], saved=(a.storage, b.storage))
        return result

    def matmul_float(self, a: Value, b: Value, label: str, out: Dims) -> Value:
        """The same outside autocast's reach: inside an operator that torch composes."""
        result = self.value(label, out, a.dtype)
        self.note(a, b, out=[result], saved=(a.storage, b.storage))
        return result

    def softmax(self, x: Value, label: str) -> Value:
        """Keeps its output; float32 under autocast."""
        return self.unary(self.upper(x), label, keeps_output=True)


def promoted(a: str, b: str) -> str:
    """The type of a result of two floating-point types."""
    if a == b:
        return a
    return a if ITEM_BYTES[a] > ITEM_BYTES[b] else b if ITEM_BYTES[b] > ITEM_BYTES[a] else "float32"


def padded_rows(tokens: int) -> int:
    """Rows of the memory-efficient kernel's logsumexp: a multiple of 32."""
    return round_up(tokens, 32)
