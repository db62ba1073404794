"""Terms of the forward and the backward pass of a dense decoder transformer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vramscope.storage.records import MemoryClass, Phase

from .activations import Recording, record
from .backward import (
    Kind,
    Kinds,
    forward_kept,
    forward_transient,
    kinds_of,
    play_backward,
)
from .dtypes import ITEM_BYTES
from .scenario import Scenario
from .tape import Storage
from .terms import ALWAYS, Allocation, Term, make_term

PASSES = frozenset({Phase.FORWARD, Phase.BACKWARD})
SAVED_SOURCE = (
    "torch 2.13: what each operator's backward formula keeps (derivatives.yaml), a storage once; "
    "checked against saved-tensor hooks on a CPU"
)
PLAYED_SOURCE = "torch 2.13 autograd, played operator by operator over the recorded forward pass"
VARIABLE_SOURCE = "Python: a variable lives until it is assigned again"
CACHE_SOURCE = "torch 2.13 aten/src/ATen/autocast_mode.cpp cached_cast"


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """Terms of the forward and the backward pass, or why there are none."""

    terms: tuple[Term, ...] = ()
    unknown: Mapping[MemoryClass, frozenset[Phase]] = field(default_factory=dict)
    not_modelled: tuple[str, ...] = ()
    uncertain: int = 0
    """Bytes in the terms that may not be there: the training loop decides."""
    gradients_at_peak: int | None = None
    """Bytes of gradients that exist at backward's peak; ``None``: all of them."""


def passes_of(scenario: Scenario) -> Passes:
    """Activations, weight copies and temporaries of both passes."""
    if reason := why_not(scenario):
        unknown = {MemoryClass.ACTIVATIONS: PASSES, MemoryClass.TEMPORARIES: PASSES}
        if scenario.autocast:
            unknown[MemoryClass.AUTOCAST_CACHE] = PASSES
        return Passes(unknown=unknown, not_modelled=(f"activations: {reason}",))
    recording = record(scenario)
    kept = _kept_outputs(scenario, recording)
    forward = _forward_terms(scenario, recording)
    backward, gradients = _backward_terms(scenario, recording)
    return Passes(
        terms=(*_merged(forward, backward), *kept),
        not_modelled=_notes(scenario),
        uncertain=sum(t.nbytes for t in kept if t.name.endswith("variable keeps")),
        gradients_at_peak=gradients,
    )


def why_not(scenario: Scenario) -> str | None:
    """Why what a pass holds cannot be predicted, in words; nothing where it can."""
    if scenario.architecture is None:
        return scenario.activations_unknown or "the scenario has no architecture"
    if scenario.batch is None or scenario.batch.sequence is None:
        return "the scenario has no batch with a sequence (give a micro-batch and a sequence)"
    if scenario.architecture.experts and scenario.inference is None:
        return "a mixture of experts keeps what its router decides, which is not modelled"
    packed = any(t.storage_bytes for t, _ in scenario.inventory.counted())
    if packed and scenario.lora is None and scenario.inference is None:
        return "quantised weights are trained through adapters, and the scenario has none"
    if scenario.batch.sequence > scenario.architecture.positions and scenario.architecture.is_gpt:
        limit = scenario.architecture.positions
        return f"the sequence of {scenario.batch.sequence} is longer than {limit} positions"
    return None


def _notes(scenario: Scenario) -> tuple[str, ...]:
    notes: list[str] = []
    trained = {t.trainable for t, _ in scenario.inventory.counted()}
    if len(trained) > 1 and scenario.lora is None:
        notes.append("activations: predicted as if no parameter were frozen, so too high")
    types = {t.dtype for t, _ in scenario.inventory.counted()}
    if len(types) > 1 and scenario.lora is None:
        notes.append("activations: weights of several types; the commonest was taken for all")
    if scenario.device == "cuda":
        notes.append("attention: the kernel is the one torch picks by default; others differ")
    return tuple(notes)


def _saved_terms(
    kinds: Kinds, sizes: Mapping[str, int], memory_class: MemoryClass, phase: Phase
) -> list[Term]:
    """One term for each kind of storage, its formula with the numbers in."""
    source = CACHE_SOURCE if memory_class is MemoryClass.AUTOCAST_CACHE else SAVED_SOURCE
    merged: dict[tuple[str, str, str], list[tuple[Kind, int]]] = {}
    for kind, count in kinds.items():
        if count > 0:
            merged.setdefault((kind.label, kind.dtype, "·".join(kind.dims)), []).append(
                (kind, count)
            )
    labels = Counter(label for label, _, _ in merged)
    terms = []
    for (label, dtype, _), parts in merged.items():
        name = label if labels[label] == 1 else f"{label}, {parts[0][0].nbytes:,} B each, {dtype}"
        terms.append(
            make_term(
                name,
                memory_class,
                [Allocation(kind.nbytes, count) for kind, count in parts],
                " + ".join(_formula(kind, count, sizes) for kind, count in parts),
                source,
                frozenset({phase}),
            )
        )
    return terms


def _formula(kind: Kind, count: int, sizes: Mapping[str, int]) -> str:
    """``12 × b·s·h × 4 B = 12 × 8·128·768 × 4 B``."""
    if not kind.dims:
        return f"{count} × {kind.nbytes} B"
    names, numbers = "·".join(kind.dims), "·".join(str(sizes[d]) for d in kind.dims)
    item = ITEM_BYTES[kind.dtype]
    return f"{count} × {names} × {item} B = {count} × {numbers} × {item} B"


def _forward_terms(scenario: Scenario, recording: Recording) -> list[Term]:
    """The end of the forward pass: all that is kept, and the logits on their way to the loss."""
    checkpointed = scenario.checkpointing != "none"
    saved, copies = forward_kept(
        recording,
        checkpointed=checkpointed,
        on_cpu=scenario.device == "cpu",
        selective=scenario.checkpointing == "selective",
    )
    transient = forward_transient(recording.head, recording.held)
    if checkpointed:
        at_loss = transient + recording.head.saved_bytes
        inside = forward_transient(recording.block, recording.block_held, keeps=False)
        if inside > at_loss:
            # Fullest inside the last block: nothing behind it has been kept yet.
            transient = inside
            saved = saved - kinds_of(recording.head.saved)
    phase = Phase.FORWARD
    terms = _saved_terms(saved, recording.sizes, MemoryClass.ACTIVATIONS, phase)
    if checkpointed:
        # The context's cache holds the blocks' copies although no graph does.
        copies = copies + _all_copies(recording)
    terms += _saved_terms(copies, recording.sizes, MemoryClass.AUTOCAST_CACHE, phase)
    terms += _cached_biases(recording)
    terms.append(
        Term(
            "logits before the loss, and what lies between",
            MemoryClass.TEMPORARIES,
            transient,
            f"{transient:,} B that no backward needs, at the loss",
            PLAYED_SOURCE,
            frozenset({phase}),
        )
    )
    return terms


def _all_copies(recording: Recording) -> Kinds:
    block = recording.block
    kinds: Kinds = Counter()
    for storage in block.copies:
        kinds[Kind.of(storage)] += block.layers
    return kinds


def _cached_biases(recording: Recording) -> list[Term]:
    nbytes = sum(op.cached_bias * s.layers for s in recording.segments for op in s.ops)
    return [
        Term(
            "16-bit biases in autocast's cache",
            MemoryClass.AUTOCAST_CACHE,
            nbytes,
            f"{nbytes // 2:,} × 2 B, until the context is left",
            CACHE_SOURCE,
            frozenset({Phase.FORWARD}),
        )
    ]


def drops_gradients(scenario: Scenario) -> bool:
    """Whether a gradient is handed on where it is made: to a shard, or to its optimizer."""
    parallelism = scenario.parallelism
    sharded = parallelism.zero_stage > 0 or parallelism.strategy == "fsdp"
    return sharded or steps_in_backward(scenario)


def steps_in_backward(scenario: Scenario) -> bool:
    """Whether every parameter is stepped as soon as its gradient is there."""
    return all(o.in_backward or o.name == "lomo" for o in scenario.optimizers)


def _backward_terms(scenario: Scenario, recording: Recording) -> tuple[list[Term], int | None]:
    """The fullest instant of the backward pass."""
    adds = scenario.accumulation > 1 or drops_gradients(scenario)
    arch = scenario.architecture
    assert arch is not None
    instant = play_backward(
        recording,
        checkpointed=scenario.checkpointing != "none",
        adds_to_gradients=adds,
        tied=arch.tied,
        on_cpu=scenario.device == "cpu",
        selective=scenario.checkpointing == "selective",
    )
    phase = Phase.BACKWARD
    terms = _saved_terms(instant.saved, recording.sizes, MemoryClass.ACTIVATIONS, phase)
    terms += [
        replace(term, name=f"computed again: {term.name}")
        for term in _saved_terms(
            instant.recomputed, recording.sizes, MemoryClass.TEMPORARIES, phase
        )
    ]
    terms += _saved_terms(instant.copies, recording.sizes, MemoryClass.AUTOCAST_CACHE, phase)
    terms.append(
        Term(
            "gradients of activations in flight",
            MemoryClass.TEMPORARIES,
            instant.temporaries,
            f"{instant.temporaries:,} B at the fullest instant",
            PLAYED_SOURCE,
            frozenset({phase}),
        )
    )
    return terms, None if adds else instant.gradients


def _kept_outputs(scenario: Scenario, recording: Recording) -> list[Term]:
    """What the loop's own variables keep alive beside the graph: outputs, and the batch."""
    terms = [*_kept_batch(scenario, recording), *_unsaved_cache(scenario, recording)]
    if not scenario.loss.keep_outputs:
        return terms
    logits = Kind.of(recording.logits[0].storage)
    pieces = len(recording.logits)
    terms.append(
        make_term(
            "logits that the loop's variable keeps",
            MemoryClass.TEMPORARIES,
            [Allocation(logits.nbytes, pieces)],
            _formula(logits, pieces, recording.sizes),
            VARIABLE_SOURCE,
            # A list of pieces is the forward pass's own while that runs.
            ALWAYS if pieces == 1 else ALWAYS - {Phase.FORWARD},
        )
    )
    # During forward the last step's cache is still there; during backward this one's is saved.
    if recording.cache:
        terms.append(
            _cache_term(
                "key-value cache that the loop's variable keeps",
                recording,
                recording.cache,
                frozenset({Phase.FORWARD, Phase.OPTIMIZER, Phase.IDLE}),
            )
        )
    return terms


def _unsaved_cache(scenario: Scenario, recording: Recording) -> list[Term]:
    """The part of this step's cache that no backward formula keeps (autocast, plain attention)."""
    unsaved = tuple(s for s in recording.cache if s not in recording.block.saved)
    if not unsaved:
        return []
    phases = PASSES if scenario.loss.keep_outputs else frozenset({Phase.FORWARD})
    return [_cache_term("key-value cache that no backward needs", recording, unsaved, phases)]


def _cache_term(
    name: str, recording: Recording, storages: tuple[Storage, ...], phases: frozenset[Phase]
) -> Term:
    layers = recording.block.layers
    return make_term(
        name,
        MemoryClass.TEMPORARIES,
        [Allocation(s.nbytes, layers) for s in storages],
        f"{layers} layers × {sum(s.nbytes for s in storages):,} B",
        "Python: the model's output holds the cache (transformers use_cache)",
        phases,
    )


def _kept_batch(scenario: Scenario, recording: Recording) -> list[Term]:
    """The batch: its tokens are saved for backward, and so are targets unless they are shifted."""
    tokens = recording.sizes["b"] * recording.sizes["s"]
    arch = scenario.architecture
    assert arch is not None
    shifted = scenario.loss.shifts_labels
    shifted = arch.family != "nanogpt" if shifted is None else shifted
    after = frozenset({Phase.OPTIMIZER, Phase.IDLE})
    formula = f"{tokens:,} tokens × 8 B"
    terms = [_batch_term("tokens and targets of the batch", 2, tokens, f"2 × {formula}", after)]
    if shifted:
        terms.append(_batch_term("targets before they are shifted", 1, tokens, formula, PASSES))
    return terms


def _batch_term(name: str, count: int, tokens: int, formula: str, phases: frozenset[Phase]) -> Term:
    return make_term(
        name,
        MemoryClass.TEMPORARIES,
        [Allocation(8 * tokens, count)],
        formula,
        VARIABLE_SOURCE,
        phases,
    )


def _merged(forward: list[Term], backward: list[Term]) -> list[Term]:
    """Terms that are the same in both passes become one."""
    same = {(t.name, t.nbytes) for t in forward} & {(t.name, t.nbytes) for t in backward}
    both = [t.at(*PASSES) for t in forward if (t.name, t.nbytes) in same]
    rest = [t for t in (*forward, *backward) if (t.name, t.nbytes) not in same]
    return both + rest
