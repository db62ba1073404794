"""Inference rows as scenarios: weights as they lie, cache, prompt and generated tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from published import Answer, Row
from published_models import Unanswered, family_of, frozen, model_of, tensors_of
from vramscope.profiler.analytic import (
    BatchShape,
    DecoderArchitecture,
    Parallelism,
    Prediction,
    Scenario,
    TensorBlock,
    TensorInventory,
    TensorSpec,
    predict,
)
from vramscope.profiler.analytic.inference import InferenceSpec
from vramscope.profiler.analytic.overheads import device_band
from vramscope.profiler.analytic.serving import server_split

SHORT_PROMPT, LITGPT_TOKENS = 16, 50
"""LitGPT's generate: a short sentence as prompt, and 50 new tokens where nothing else is said."""
HALF = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16"}


def dtype_of(row: Row) -> str:
    """Type of the weights that are not quantised."""
    words = str(row.precision or "").lower()
    titan = row.says("torchtitan", "framework")  # its weights are float32, whatever it computes in
    if (
        titan
        or re.match(r"fp32|float32", words)
        or re.search(r"fp32 params|over fp32|(?<!no )amp$", words)
    ):
        return "float32"
    quant = str(row.quant or "").lower()
    if "gptq" in quant or "awq" in quant or "fp16" in quant:
        return "float16"
    return next((name for word, name in HALF.items() if word in words), "float16")


def quantization_of(row: Row) -> Mapping[str, Any] | None:
    """The row's quantisation as a ``quantization_config``.

    Raises:
        Unanswered: A method that is not known.
    """
    words = str(row.quant or "").lower()
    if not words or words == "none":
        return None
    if "gptq" in words:
        return {"quant_method": "gptq", "bits": 8 if "int8" in words else 4, "group_size": 128}
    if "awq" in words:
        return {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    if "nf4" in words or "fp4" in words:
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4" if "nf4" in words else "fp4",
            "bnb_4bit_use_double_quant": "dq" in words,
        }
    if "int8" in words:
        return {"quant_method": "bitsandbytes", "load_in_8bit": True}
    raise Unanswered(f"quantisation: {row.quant} is not known")


def untied(row: Row) -> bool:
    """LitGPT gives the head a matrix of its own."""
    return row.says("litgpt", "framework", "source")


def weights(row: Row) -> TensorInventory:
    """The row's weights; LitGPT quantises the head too, and a model on two GPUs is halved."""
    quantization, dtype = quantization_of(row), dtype_of(row)
    if row.precision and row.says("fp8|mxfp4", "precision"):
        return frozen(_eight_bit(row))
    if quantization is None:
        return frozen(tensors_of(row.arch, dtype, untied=untied(row)))
    if not row.arch.get("hidden"):
        raise Unanswered("no model: quantised weights need its sizes")
    found = model_of(row.arch, dtype, quantization=quantization, untied=untied(row)).tensors
    if row.says("litgpt", "framework", "source"):
        found = _with_quantised_head(found, row)
    return found


def _with_quantised_head(found: TensorInventory, row: Row) -> TensorInventory:
    """The last large plain matrix is the head: in LitGPT a linear layer like the others."""
    from vramscope.profiler.analytic.readers.modules import Weight
    from vramscope.profiler.analytic.readers.quantized import read_quantisation

    quantisation = read_quantisation(dict(quantization_of(row) or {}))
    shape = (row.arch["vocab"], row.arch["hidden"])
    held = quantisation.storage_bytes("block.linear", Weight(shape, "linear"))
    blocks = list(found.blocks)
    for place in range(len(blocks) - 1, -1, -1):
        tensors = list(blocks[place].tensors)
        for i in range(len(tensors) - 1, -1, -1):
            if tensors[i].shape == shape and tensors[i].storage_bytes is None:
                tensors[i] = replace(tensors[i], dtype=quantisation.dtype, storage_bytes=held)
                blocks[place] = TensorBlock(tensors=tuple(tensors), repeat=blocks[place].repeat)
                return replace(found, blocks=tuple(blocks))
    return found


def _eight_bit(row: Row) -> TensorInventory:
    """Blocks in FP8, embeddings and head in 16 bit (vLLM's and compressed-tensors' default)."""
    if not row.arch.get("hidden"):
        raise Unanswered(f"no model: {row.precision} weights need its sizes")
    found = model_of(row.arch, "bfloat16").tensors
    blocks = tuple(
        TensorBlock(tensors=tuple(_one_byte(t, row) for t in b.tensors), repeat=b.repeat)
        for b in found.blocks
    )
    return replace(found, blocks=blocks)


def _one_byte(tensor: TensorSpec, row: Row) -> TensorSpec:
    matrix = len(tensor.shape) > 1 and row.arch["vocab"] not in tensor.shape
    return replace(tensor, dtype="float8_e4m3fn") if matrix else tensor


def architecture_of(row: Row, family: str | None = None) -> DecoderArchitecture | None:
    """The row's decoder by its sizes; nothing where they are not all given."""
    a, kind = row.arch, family_of(row.arch)
    needed = ("layers", "hidden", "heads", "ffn") + (("vocab",) if kind != "vit" else ())
    if not all(a.get(name) for name in needed):
        return None
    layer = kind in ("bert", "vit", "phi", "gptneox", "falcon", "opt", "mpt", "gpt_bigcode", "gpt2")
    residual: Literal["none", "one norm", "two norms"] = "none"
    if kind in ("phi", "falcon"):
        residual = "one norm"
    elif kind == "gptneox":
        residual = "two norms"
    own = {
        "bert": "bert",
        "vit": "vit",
        "qwen2": "qwen2",
        "qwen3": "qwen3",
        "mistral": "mistral",
        "qwen1": "qwen2",
    }
    return DecoderArchitecture(
        family=family or own.get(kind, "llama"),  # type: ignore[arg-type]
        layers=a["layers"],
        hidden=a["hidden"],
        heads=a["heads"],
        kv_heads=a.get("kv_heads") or a["heads"],
        head_dim=a.get("head_dim"),
        intermediate=a["ffn"] // 2 if kind == "qwen1" and a["ffn"] > 4 * a["hidden"] else a["ffn"],
        vocabulary=a.get("vocab") or 1,
        positions=512 if kind == "bert" else max(2048, row.seq or 0),
        activation=_activation(kind),  # type: ignore[arg-type]
        tied=bool(a.get("tied_embeddings")),
        attention_bias=kind in ("bert", "vit", "phi", "gptneox", "qwen2", "qwen1"),
        output_bias=kind in ("bert", "vit", "phi", "gptneox"),
        mlp_bias=kind in ("bert", "vit", "phi", "gptneox"),
        residual_dropout=0.1 if kind == "bert" else 0.0,
        embedding_dropout=0.1 if kind == "bert" else 0.0,
        attention_dropout=0.1 if kind == "bert" else 0.0,
        norm_bias=layer,
        norm="layer" if layer else "rms",
        gated=bool(a.get("gated_mlp")) if a.get("gated_mlp") is not None else not layer,
        parallel_residual=residual,
        post_norms=kind == "gemma2",
        patch_values=3 * 14 * 14,
        experts=a.get("experts") or 0,
        active_experts=a.get("topk") or 0,
    )


GELU = ("bert", "vit", "phi", "gptneox", "falcon", "mpt", "gpt_bigcode")


def _activation(kind: str) -> str:
    if kind in ("gemma", "gemma2"):
        return "gelu_tanh"
    return "gelu" if kind in GELU else "silu"


def answer_weights(row: Row) -> Answer:
    """Bytes of the weights on one device, divided among those that share them.

    DeepSpeed's AutoTP leaves the embedding whole.
    """
    found = weights(row)
    table = (row.arch.get("vocab"), row.arch.get("hidden"))
    whole = row.says("AutoTP", "framework")
    held = sum(
        t.held_bytes * n / (1 if whole and t.shape == table else max(1, row.tp))
        for t, n in found.counted()
    )
    if row.quantity == "device":
        return Answer(held + _context(row))
    return Answer(held)


def _context(row: Row) -> int:
    """What the row's source says the context of its machine takes; none where it does not."""
    said = re.search(r"(\d+)-(\d+) = ", str(row.notes or ""))
    return int(said[2]) * 2**20 if said else 0


def answer_inference(row: Row) -> Answer:
    """The peak of generating, or what is asked of it.

    Raises:
        Unanswered: Sizes, lengths or the way of serving are not known.
    """
    if row.quantity == "parameters" or row.says("weight shard|to.cuda", "measured"):
        return answer_weights(row)
    if row.quantity in ("activations", "kv_cache"):
        return _server(row)
    if row.quantity == "none":
        raise Unanswered("a server's graphs and libraries: not modelled")
    scenario = _scenario(row)
    prediction = predict(scenario)
    return _asked(row, prediction)


def _server(row: Row) -> Answer:
    """A part of what a server's start-up log says.

    Raises:
        Unanswered: The GPU's memory, the share of it, or the vocabulary is not given.
    """
    memory = re.search(r"([\d.]+) GiB", str(row.gpu or ""))
    share, vocabulary = row.extra.get("gpu_memory_utilization"), row.arch.get("vocab")
    if not (memory and share and vocabulary):
        raise Unanswered("a server: its GPU's memory or its vocabulary is not given")
    split = server_split(
        weights=int(answer_weights(row).predicted),
        vocabulary=vocabulary,
        capacity=int(float(memory[1]) * 2**30),
        gpu=str(row.gpu),
        utilization=share,
    )
    return Answer(split.kv_cache if row.quantity == "kv_cache" else split.activation_peak)


def _scenario(row: Row) -> Scenario:
    found, architecture = weights(row), architecture_of(row)
    if architecture is None:
        raise Unanswered("no model: its sizes are not given")
    prompt, new = _lengths(row)
    static = row.says("fused", "framework") or bool(row.extra.get("fused_modules"))
    litgpt = row.says("litgpt", "framework", "source")
    autocast = "bfloat16" if row.says("autocast", "precision") else None
    if row.says("CS336", "source", "arch") or row.says("cs336", "id"):
        return _plain_forward(row, architecture, found, autocast)
    if litgpt:
        architecture = replace(architecture, family="litgpt")
    if row.pp > 1 and row.scope != "total":
        architecture = replace(architecture, layers=-(-architecture.layers // row.pp))
    spec = InferenceSpec(
        new_tokens=new,
        cache="static" if static or litgpt else "dynamic",
        loading_copies=_loading_copies(row, litgpt=litgpt),
        cache_dtype="int8" if row.extra.get("kv_dtype") == "int8" else None,
        logits="all" if static or (prompt > 1 and row.says("4\\.3[0-9]", "framework")) else "last",
    )
    return Scenario(
        architecture=architecture,
        tensors=found,
        batch=BatchShape(micro_batch=row.micro_batch or 1, sequence=prompt),
        attention="eager" if "fused" in _serving(row) else "sdpa",
        parallelism=_shared_out(row),
        inference=spec,
        gpu=row.gpu,
        dropout_active=False,
    )


def _serving(row: Row) -> str:
    """AutoAWQ's modules, fused or not, write attention out."""
    return f"{row.framework} fused" if "fused_modules" in row.extra else str(row.framework)


def _shared_out(row: Row) -> Parallelism:
    """Tensor parallelism, or layers laid out one after another; a total counts every device."""
    if row.scope == "total" or row.n_gpus == 1:
        return Parallelism()
    return Parallelism(tensor_parallel=row.tp, pipeline_parallel=row.pp)


def _loading_copies(row: Row, *, litgpt: bool) -> int:
    """LitGPT quantises as it loads; AWQ checkpoints of tied models bring a head of their own."""
    if litgpt and row.quant:
        return 2
    return int(row.says("awq", "quant") and bool(row.arch.get("tied_embeddings")))


def _plain_forward(
    row: Row, architecture: DecoderArchitecture, found: TensorInventory, autocast: Any
) -> Scenario:
    """One forward pass without a cache."""
    return Scenario(
        architecture=replace(architecture, family="cs336"),
        tensors=found,
        autocast=autocast,
        batch=BatchShape(micro_batch=row.micro_batch, sequence=row.seq),
        attention="eager",
        inference=InferenceSpec(cache="none", logits="all"),
        gpu=row.gpu,
        dropout_active=False,
    )


def _lengths(row: Row) -> tuple[int, int]:
    """Prompt and generated tokens."""
    extra = row.extra
    if extra.get("prefill") is not None:
        return int(extra["prefill"]), int(extra["decode"])
    words = str(row.measured)
    if match := re.search(r"(\d+) (?:generated|new) tokens|generate (\d+) tokens", words):
        return SHORT_PROMPT, int(match[1] or match[2])
    if row.seq:
        return 1, int(row.seq)
    if row.says("litgpt", "framework", "source"):
        return SHORT_PROMPT, LITGPT_TOKENS
    raise Unanswered("no lengths: prompt and generated tokens are not given")


def _asked(row: Row, prediction: Prediction) -> Answer:
    peak = prediction.peak.allocated
    if peak is None:
        raise Unanswered("; ".join(prediction.not_modelled[:1]) or "unknown")
    end = next(u.allocated for p, u in prediction.phases.items() if p.value == "idle")
    if row.quantity in ("end", "start"):
        assert end is not None
        return Answer(end)
    if row.quantity in ("reserved", "device"):
        assert prediction.reserved is not None
        band = prediction.reserved
        if row.quantity == "device":
            band = device_band(band, row.gpu)
        return Answer(band.usual, band.low, band.high)
    others = int(row.n_gpus) - 1 if row.scope == "total" else 0
    return Answer(peak + others * (prediction.peak.temporaries or 0))
