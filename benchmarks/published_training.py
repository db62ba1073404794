"""Training rows as scenarios: what was trained, with what, how it was spread."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from published import Answer, Row
from published_inference import architecture_of, dtype_of, quantization_of, weights
from published_models import Unanswered, frozen, model_of, tensors_of
from vramscope.profiler.analytic import (
    BatchShape,
    LossSpec,
    OptimizerSpec,
    Parallelism,
    Prediction,
    Scenario,
    TensorBlock,
    TensorInventory,
    TensorSpec,
    parameters_of,
    predict,
)
from vramscope.profiler.analytic.adapters import LoraSpec
from vramscope.profiler.analytic.offload import Offload
from vramscope.profiler.analytic.overheads import Band, device_band
from vramscope.storage.records import Phase

LIBRARIES = (("litgpt", "litgpt"), ("torchtune", "torchtune"), ("CS336", "cs336"))
"""Whose model code a row ran, by what its framework or architecture says."""


LITGPT_BATCH = 64
"""Samples in a step of LitGPT's fine-tuning scripts (``batch_size``)."""


def answer_training(row: Row) -> Answer:
    """What the row asks of a training step.

    Raises:
        Unanswered: Something that decides the answer is not known or not modelled.
    """
    prediction = predict(scenario_of(row))
    return asked(row, prediction)


def scenario_of(row: Row) -> Scenario:
    """The row as a scenario."""
    library = library_of(row)
    architecture = architecture_of(row, library)
    lora = _lora(row)
    return Scenario(
        architecture=architecture,
        tensors=_tensors(row, lora),
        autocast=_autocast(row) or _sharded_compute(row),
        master_weights=_keeps_master_weights(row),
        optimizers=(_optimizer(row),),
        batch=_batch(row),
        accumulation=_accumulation(row),
        checkpointing=checkpointing_of(row),
        attention="eager" if row.says("eager", "attention") or _capped(row) else "sdpa",
        use_cache=library is None and checkpointing_of(row) == "none",
        compiled=bool(row.extra.get("compile")),
        loss=LossSpec(
            keep_outputs=not row.says("torchtune|torchtitan", "framework"),
            chunk_tokens=_loss_pieces(row),
            upcast_logits=False if row.arch.get("family") == "qwen1" else None,
        ),
        parallelism=_parallelism(row),
        lora=lora,
        offload=_offload(row),
        gpu=row.gpu,
        activations_unknown=None if architecture else "the row gives no sizes",
    )


def _loss_pieces(row: Row) -> int | None:
    """torchtune's recipes cut head and loss in 8; compiled, each is one kernel.

    torchtitan compiles its loss, whole, since 2025.
    """
    if row.extra.get("compile") and re.fullmatch("torchtitan", str(row.framework)):
        return int(row.seq)
    if library_of(row) != "torchtune" or not row.seq:
        return None
    if not row.extra.get("chunked_ce") and not row.says("Llama 3", "source"):
        return None
    return -(-int(row.seq) // 8)


def _offload(row: Row) -> Offload:
    """What is kept on the host; activations that are offloaded are predicted as if they stayed."""
    words = str(row.offload or "").lower()
    return Offload(
        optimizer="cpu" if "optimizer" in words else "none",
        parameters="cpu" if "params" in words or words == "fsdp cpu" else "none",
    )


def library_of(row: Row) -> str | None:
    """Whose model code ran; nothing for Hugging Face's."""
    for words, name in LIBRARIES:
        if row.says(words, "framework", "source", "arch"):
            return name
    return None


def _capped(row: Row) -> bool:
    """Gemma 2 caps its scores, for which no fused kernel was used."""
    return str(row.arch.get("family")) == "gemma2"


def _lora(row: Row) -> LoraSpec | None:
    said = row.lora
    if not said or not isinstance(said.get("r"), int):
        unsaid = row.category in ("train_lora", "train_qlora") and "method" not in row.extra
        if not unsaid or row.extra.get("trainable_params"):
            return None
        said = {"r": 8, "targets": "q, v"}  # PEFT's defaults
    targets = said.get("targets") or ("all-linear",)
    if isinstance(targets, str):
        words = targets.lower()
        targets = ("all-linear",) if "all" in words else ("query", "value")
    litgpt = library_of(row) == "litgpt"
    return LoraSpec(
        rank=said["r"],
        targets=tuple(targets),
        dtype=_adapter_dtype(row, litgpt=litgpt),
        dropout=0.05 if litgpt or row.says("Qwen finetune", "framework") else 0.0,
        trained_whole=tuple(said.get("modules_to_save") or ()),
        dora=bool(said.get("dora")),
    )


def _adapter_dtype(row: Row, *, litgpt: bool) -> Any:
    """As the base where a library makes them so: LitGPT, torchtune, PEFT until 0.10 (Qwen's)."""
    as_base = litgpt or row.says(r"bf16 \(true\)", "precision")
    if as_base or row.says("Qwen finetune", "framework"):
        return dtype_of(row)
    return None


def _tensors(row: Row, lora: LoraSpec | None) -> TensorInventory:
    if row.category == "train_diffusion" and not row.arch.get("params"):
        raise Unanswered("a diffusion pipeline: what else lies on the device is not given")
    if row.arch.get("family") == "mlp":
        return _square_layers(row)
    if lora is not None:
        return weights(row)
    trained = row.extra.get("trainable_params")
    quantization = quantization_of(row)
    if trained is not None and trained != row.arch.get("params"):
        return _with_counted_adapters(row, trained)
    if quantization is not None:
        raise Unanswered("quantised weights: what is trained beside them is not given")
    if row.arch.get("family") == "bert":
        return model_of(row.arch, dtype_of(row), task="SequenceClassification").tensors
    return tensors_of(row.arch, dtype_of(row), untied=library_of(row) == "litgpt")


def _square_layers(row: Row) -> TensorInventory:
    """A stack of square linear layers with biases."""
    width = row.arch["hidden"]
    layer = TensorBlock(
        tensors=(TensorSpec(shape=(width, width)), TensorSpec(shape=(width,))),
        repeat=row.arch["layers"],
    )
    return TensorInventory(blocks=(layer,))


def _with_counted_adapters(row: Row, trained: int) -> TensorInventory:
    """Frozen weights, and as many trained numbers as the row counts, in float32 (PEFT)."""
    base = frozen(weights(row))
    dtype = "float32" if row.says("adapter fp32", "precision") else dtype_of(row)
    layers = row.arch.get("layers") or 1
    total = row.extra.get("total_params") or 0
    resting = max(0, total - trained - row.arch.get("params", total))
    blocks = [*base.blocks, *parameters_of(trained, dtype=dtype, count=2 * layers).blocks]
    if resting:
        blocks += frozen(parameters_of(resting, dtype=dtype, count=2 * layers)).blocks
    return replace(base, blocks=tuple(blocks))


def _autocast(row: Row) -> Any:
    words = str(row.precision or "").lower()
    if re.search(r"autocast|amp", words) and not re.search(r"no amp", words):
        return "float16" if "fp16" in words else "bfloat16"
    return None


def _sharded_compute(row: Row) -> Any:
    """What FSDP's mixed precision computes in (`fp32 params, bf16 compute`, fp8 recipes)."""
    titan = row.says("torchtitan", "framework")
    return "bfloat16" if titan and row.zero_stage == 3 else None


def _keeps_master_weights(row: Row) -> bool:
    if row.says("LOMO", "optimizer", "measured"):
        return False
    deepspeed = row.says("DeepSpeed", "framework") and row.zero_stage
    return bool(deepspeed) or row.says("fp32 master/", "precision")


def _optimizer(row: Row) -> OptimizerSpec:
    """The optimizer by its name.

    Raises:
        Unanswered: One that is not modelled.
    """
    words = str(row.optimizer or "AdamW").lower()
    if row.says("gradients, LOMO", "measured"):
        words = "lomo"
    if "4-bit" in words:
        return OptimizerSpec(name="adamw4bit")
    if "paged" in words and library_of(row) == "torchtune":
        # Its low-memory recipe steps in backward too.
        return OptimizerSpec(name="adamw", paged=True, in_backward=True, implementation="fused")
    implementation: Any = _implementation(row, words)
    if "8-bit" in words or "8bit" in words:
        backward = bool(row.extra.get("optimizer_in_bwd"))
        return OptimizerSpec(name="adamw8bit", paged="paged" in words, in_backward=backward)
    backward = bool(row.extra.get("optimizer_in_bwd"))
    for name in ("lomo", "muon", "adafactor", "lion", "adagrad", "lamb"):
        if name in words:
            return OptimizerSpec(name=name)  # type: ignore[arg-type]
    if "sgd" in words:
        return OptimizerSpec(name="sgd", implementation=implementation)
    if "adam" in words:
        return OptimizerSpec(
            name="adamw",
            implementation=implementation,
            weight_decay=0.01,
            in_backward=backward,
            partitioned=_partitioned(row),
        )
    raise Unanswered(f"optimizer: {row.optimizer} is not modelled")


def _implementation(row: Row, words: str) -> str:
    """torchtune and torchtitan step fused; CS336's and transformers' own AdamW, and torch's before
    2.0, go parameter by parameter.
    """
    if "fused" in words or row.says("torchtune|torchtitan", "framework"):
        return "fused"
    alone = library_of(row) == "cs336" or row.says("torch DDP|transformers Trainer", "framework")
    return "for-loop" if alone else "foreach"


def _partitioned(row: Row) -> bool:
    """Optimizer states alone are shared out, by whole parameters."""
    return row.zero_stage == 1 and row.says("torch DDP", "framework")


def _batch(row: Row) -> BatchShape | None:
    """Samples and tokens; torchtune's Alpaca recipes cut at 512 tokens, two samples at a time."""
    alpaca = row.says("alpaca", "measured", "notes") and library_of(row) == "torchtune"
    if alpaca and not row.seq:
        return BatchShape(micro_batch=row.micro_batch or 2, sequence=512)
    if not row.micro_batch:
        return None
    padded = re.search(r"about? .*~(\d+) padded tokens|~(\d+) padded tokens", str(row.notes or ""))
    if padded:
        tokens = int(padded[1] or padded[2])
        return BatchShape(micro_batch=1, sequence=tokens)
    # torchtitan cuts a pipeline's batch in as many micro-batches as there are stages.
    return BatchShape(micro_batch=max(1, row.micro_batch // row.pp), sequence=row.seq)


def _accumulation(row: Row) -> int:
    """Micro-batches of a step; LitGPT's scripts step after 64 samples."""
    if row.grad_accum:
        return int(row.grad_accum)
    default = library_of(row) == "litgpt" and row.micro_batch
    return max(1, LITGPT_BATCH // (row.micro_batch * row.n_gpus)) if default else 1


def checkpointing_of(row: Row) -> Any:
    """Which activations are kept."""
    words = str(row.checkpointing or "none").lower()
    if words.startswith(("none", "false")):
        return "none"
    return "selective" if "selective" in words else "full"


def _parallelism(row: Row) -> Parallelism:
    if row.n_gpus == 1 and row.says("DeepSpeed", "framework") and row.lora is None:
        # Qwen's scripts leave the bucket to `auto`, which is hidden².
        return Parallelism(
            strategy="zero", zero_stage=2, reduce_bucket_elements=row.arch["hidden"] ** 2
        )
    if row.n_gpus == 1:
        return Parallelism()
    sharded = row.says("FSDP|torchtitan|torchtune|peft", "framework", "checkpointing", "precision")
    common: dict[str, Any] = {
        "world_size": max(1, row.dp * row.cp),
        "tensor_parallel": row.tp,
        "pipeline_parallel": row.pp,
        "context_parallel": row.cp,
        "megatron_sequence_parallel": row.tp > 1,
    }
    if row.says("torch DDP", "framework"):
        # CS336's DDP reduces gradients where they lie: no buckets.
        own = library_of(row) == "cs336"
        return Parallelism(strategy="zero" if own else "ddp", **common)
    if row.zero_stage == 3 and sharded:
        version = 1 if library_of(row) == "litgpt" else 2
        # Under a pipeline torchtitan gathers once for all micro-batches.
        sharding: Any = "gradients" if row.pp > 1 else "full"
        return Parallelism(strategy="fsdp", fsdp_version=version, fsdp_sharding=sharding, **common)
    if row.zero_stage:
        return Parallelism(strategy="zero", zero_stage=row.zero_stage, **common)
    return Parallelism(strategy="ddp" if row.dp > 1 else "none", **common)


def reason_of(prediction: Prediction) -> str:
    """Why the sum is unknown: the first of the notes that leaves a class open."""
    open_notes = ("activations:", "optimizer_state:", "parallelism.", "offload.", "lora.")
    notes = [n for n in prediction.not_modelled if n.startswith(open_notes)]
    return notes[0] if notes else "unknown"


def asked(row: Row, prediction: Prediction) -> Answer:
    """The figure that the row measured, out of the prediction.

    Raises:
        Unanswered: It could not be predicted; the reason is the prediction's own.
    """
    phases, quantity = prediction.phases, row.quantity
    why = reason_of(prediction)
    if quantity in CLASSES:
        return Answer(_class_bytes(row, prediction, why))
    if quantity in ("end", "start") or row.says(AROUND_STEP, "measured"):
        return Answer(_instant(row, prediction, why))
    if row.says("total memory .profile", "measured"):
        use = phases[Phase.BACKWARD]
        return Answer(sum(getattr(use, name) or 0 for name in CLASSES))
    peak = prediction.peak.allocated
    if peak is None or prediction.peak_phase is None:
        raise Unanswered(why)
    if quantity in ("reserved", "device"):
        assert prediction.reserved is not None
        band = prediction.reserved
        if quantity == "device":
            band = _device(row, band)
        return Answer(band.usual, band.low, band.high)
    return Answer(peak)


AROUND_STEP = r"(before|after).optimizer.step(,|: )|before optimizer\.step$"
CLASSES = ("parameters", "gradients", "optimizer_state", "activations")


def _class_bytes(row: Row, prediction: Prediction, why: str) -> int:
    """Bytes of one class.

    Where the row says what was allocated, with what the allocator rounds up; else as tensors
    count themselves.
    """
    phase = Phase.FORWARD if row.quantity == "activations" else Phase.IDLE
    if row.says("LOMO", "measured"):
        phase = Phase.BACKWARD
    held = getattr(prediction.phases[phase], row.quantity)
    if held is None:
        raise Unanswered(why)
    if row.says("allocated|phase_peak|reserved", "measured"):
        return int(held)
    return sum(
        t.bytes
        for t in prediction.terms
        if t.memory_class.value == row.quantity
        and not t.name.startswith("rounding")
        and ("(only in " not in t.name or phase.value in t.name.split("(only in ")[1])
    )


def _instant(row: Row, prediction: Prediction, why: str) -> int:
    """What is allocated before a step, at its end, or around the optimizer's first one."""
    phases = prediction.phases
    idle = phases[Phase.IDLE]
    if idle.allocated is None or idle.gradients is None or idle.optimizer_state is None:
        raise Unanswered(why)
    if row.quantity == "start":
        return idle.allocated - idle.gradients - (idle.temporaries or 0) + _workspaces(prediction)
    if row.says("DDP wrap", "measured"):
        return idle.allocated - idle.gradients - idle.optimizer_state - _outputs(prediction)
    peak = row.says("peak", "measured")
    if row.says("before.optimizer", "measured"):
        passes = [phases[p].allocated for p in (Phase.FORWARD, Phase.BACKWARD)]
        if peak and None not in passes:
            return max(p for p in passes if p is not None) - idle.optimizer_state
        return idle.allocated - idle.optimizer_state
    step = phases[Phase.OPTIMIZER].allocated
    return step if peak and step is not None else idle.allocated


def _workspaces(prediction: Prediction) -> int:
    return sum(t.bytes for t in prediction.terms if "workspaces" in t.name)


def _outputs(prediction: Prediction) -> int:
    """What only a step leaves behind: outputs, the batch, workspaces."""
    return prediction.phases[Phase.IDLE].temporaries or 0


def _device(row: Row, reserved: Band) -> Band:
    """With the context that the row's notes give for that machine, where they do."""
    said = re.search(r"[Cc]ontext about (\d+) M", str(row.notes or ""))
    return device_band(reserved, row.gpu, int(said[1]) * 2**20 if said else None)
