"""Training rows as scenarios: what was trained, with what, how it was spread."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from published import Answer, Row
from published_figures import asked
from published_inference import architecture_of, dtype_of, quantization_of, weights
from published_models import Unanswered, frozen, model_of, tensors_of
from vramscope.profiler.analytic import (
    BatchShape,
    LossSpec,
    OptimizerSpec,
    Parallelism,
    Scenario,
    TensorBlock,
    TensorInventory,
    TensorSpec,
    parameters_of,
    predict,
)
from vramscope.profiler.analytic.adapters import LoraSpec
from vramscope.profiler.analytic.offload import Offload

LIBRARIES = (("litgpt", "litgpt"), ("torchtune", "torchtune"), ("CS336", "cs336"))
"""Whose model code a row ran, by what its framework or architecture says."""


VIT_TOKENS = (224 // 14) ** 2 + 1
"""Patches of 14 pixels in an image of 224, and the class token."""
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
        use_cache=_fills_cache(row, library),
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


def _fills_cache(row: Row, library: str | None) -> bool:
    """Hugging Face's decoders do in training too, but not with checkpointing."""
    decoder = row.arch.get("family") not in ("bert", "vit")
    return library is None and decoder and checkpointing_of(row) == "none"


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
    """As the base where a library makes them so (LitGPT, torchtune); PEFT's are float32."""
    as_base = litgpt or row.says(r"bf16 \(true\)", "precision")
    return dtype_of(row) if as_base else None


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
    if row.arch.get("family") == "vit" and row.arch.get("hidden"):
        return model_of(row.arch, dtype_of(row), task="ImageClassification").tensors
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
    if row.arch.get("family") == "vit":
        return BatchShape(micro_batch=row.micro_batch, sequence=VIT_TOKENS)
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
