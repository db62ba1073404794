"""A Hugging Face ``config.json`` as the tensors of the model that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..dtypes import DTYPE_ALIASES, QUANTISED, TensorDtype
from ..inventory import TensorInventory, TensorSpec, fold
from .families import FAMILIES
from .families.family import Body
from .hf_values import HfConfig
from .modules import Buffer, Tied, Tree, Weight, named_leaves
from .quantized import Quantisation, read_quantisation


@dataclass(frozen=True, kw_only=True, slots=True)
class HfModel:
    """The model of a configuration."""

    model_type: str
    class_name: str
    tensors: TensorInventory
    dtype: TensorDtype
    """Type of the weights that are not quantised."""
    quantisation: Quantisation | None
    notes: tuple[str, ...]
    """What was taken where the file does not say."""


def is_hf_config(data: object) -> bool:
    """Whether a mapping looks like a Hugging Face ``config.json``."""
    return isinstance(data, Mapping) and ("model_type" in data or "architectures" in data)


def read_hf_config(config: Mapping[str, Any], *, dtype: str | None = None) -> HfModel:
    """The model that a ``config.json`` describes, tensor by tensor.

    Absent keys are those of the configuration classes of transformers 5.24, whose models the
    tensors are checked against.

    Args:
        config: The file's mapping.
        dtype: Type of the weights in place of the file's; ``int8``, ``nf4`` and ``fp4`` quantise
            the linear layers as bitsandbytes does.

    Raises:
        ValueError: The model is not known here, or a value is not understood; names what is known.
    """
    model_type = _known_type(config)
    notes: list[str] = []
    class_name, tree = _class_of(config, model_type, notes)
    quantisation = _quantisation(config, dtype)
    plain = _dtype(config, dtype, quantisation, notes)
    return HfModel(
        model_type=model_type,
        class_name=class_name,
        tensors=tensors_of(tree, plain, quantisation),
        dtype=plain,
        quantisation=quantisation,
        notes=tuple(notes),
    )


def _known_type(config: Mapping[str, Any]) -> str:
    said = config.get("model_type")
    if isinstance(said, str) and said in FAMILIES:
        return said
    if config.get("auto_map"):
        raise ValueError(
            f"model_type={said!r}: its code comes with the checkpoint (auto_map), not with "
            "transformers, so its tensors cannot be known from the configuration; give a scenario "
            "with `tensors` instead"
        )
    raise ValueError(
        f"model_type={said!r}: not a model that is known here, and it is not guessed; known are "
        f"{', '.join(sorted(FAMILIES))}"
    )


def _class_of(config: Mapping[str, Any], model_type: str, notes: list[str]) -> tuple[str, Tree]:
    family = FAMILIES[model_type]
    named = config.get("architectures") or []
    if not named:
        notes.append(f"architectures: not said; the class …{family.usual} of {model_type} is taken")
    named = [named] if isinstance(named, str) else named
    name = str(named[0]) if named else family.usual
    body = family.named(name)
    if body is None:
        raise ValueError(
            f"architectures={name!r}: not a class of {model_type} that is known here; known are "
            f"those that end in {', '.join(family.classes)}"
        )
    if config.get("auto_map"):
        notes.append(
            f"auto_map: transformers' own {model_type} is taken, not the checkpoint's code"
        )
    return name, _built(body, HfConfig(config, model_type))


def _built(body: Body, config: HfConfig) -> Tree:
    try:
        return body(config)
    except IndexError:
        raise ValueError(
            f"{config.model_type}: a list that has an entry for each layer is too short"
        ) from None
    except ZeroDivisionError:
        raise ValueError(f"{config.model_type}: a size is 0 that others are divided by") from None


def _quantisation(config: Mapping[str, Any], dtype: str | None) -> Quantisation | None:
    if dtype in QUANTISED:
        four = dtype != "int8"
        return read_quantisation(
            {
                "quant_method": "bitsandbytes",
                "load_in_4bit": four,
                "load_in_8bit": not four,
                "bnb_4bit_quant_type": dtype,
            }
        )
    said = config.get("quantization_config") or _text(config).get("quantization_config")
    if dtype is not None or not said:
        return None
    if not isinstance(said, Mapping):
        raise ValueError(f"quantization_config={said!r}: must be a mapping")
    return read_quantisation(said)


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else {}


def _dtype(
    config: Mapping[str, Any],
    dtype: str | None,
    quantisation: Quantisation | None,
    notes: list[str],
) -> TensorDtype:
    if dtype is not None and dtype not in QUANTISED:
        said: object = dtype
    else:
        said = next(
            (
                source[key]
                for source in (config, _text(config))
                for key in ("dtype", "torch_dtype")
                if source.get(key)
            ),
            None,
        )
    if said in (None, "auto"):
        said = "float32" if quantisation is None else "float16"
        notes.append(f"torch_dtype: not said; weights are taken as {said}")
    name = DTYPE_ALIASES.get(str(said), str(said).removeprefix("torch."))
    if name not in ("float32", "float16", "bfloat16", "float64"):
        raise ValueError(f"torch_dtype={said!r}: must be float32, float16, bfloat16 or float64")
    if quantisation is not None:
        notes.append(f"quantization_config: {quantisation.method}; other tensors are {name}")
    return name  # type: ignore[return-value]


def tensors_of(
    tree: Tree, dtype: TensorDtype, quantisation: Quantisation | None = None
) -> TensorInventory:
    """A model's tensors as an inventory; nothing of a quantised model is trainable."""
    trainable = quantisation is None
    made: dict[tuple[object, ...], TensorSpec] = {}
    specs: list[TensorSpec] = []
    buffers: list[int] = []
    tied = buffer_numel = 0
    for name, leaf in named_leaves(tree):
        if isinstance(leaf, Tied):
            tied += leaf.numel
        elif isinstance(leaf, Buffer):
            buffers.append(leaf.numel * leaf.item_bytes)
            buffer_numel += leaf.numel
        else:
            held = quantisation.storage_bytes(name, leaf) if quantisation else None
            key = (leaf.shape, held)
            if key not in made:
                made[key] = _spec(leaf, dtype, held, quantisation, trainable)
            specs.append(made[key])
    return TensorInventory(
        blocks=fold(specs), buffers=tuple(buffers), tied_numel=tied, buffer_numel=buffer_numel
    )


def _spec(
    leaf: Weight,
    dtype: TensorDtype,
    held: int | None,
    quantisation: Quantisation | None,
    trainable: bool,
) -> TensorSpec:
    packed = held is not None and quantisation is not None
    return TensorSpec(
        shape=leaf.shape,
        dtype=quantisation.dtype if packed and quantisation else dtype,
        trainable=trainable,
        optimizer=0 if trainable else None,
        storage_bytes=held,
    )
