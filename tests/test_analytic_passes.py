"""Predicted activations and phase peaks against what torch really keeps, on a CPU."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vramscope.profiler.analytic import Prediction, predict
from vramscope.profiler.analytic.activations import record
from vramscope.profiler.demo.gpt import GPT, GPTConfig
from vramscope.profiler.frameworks.live import batch_shape, read_scenario
from vramscope.storage.records import MemoryClass, Phase

transformers = pytest.importorskip("transformers")

SIZES = [(2, 48, 6, 97, 40, 5), (3, 64, 4, 300, 32, 2), (4, 96, 12, 128, 64, 3)]
"""Layers, width, heads, vocabulary, tokens, samples."""
HALF = {"fp32": None, "bf16": None, "autocast": torch.bfloat16}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    level, threads = transformers.logging.get_verbosity(), torch.get_num_threads()
    transformers.logging.set_verbosity_error()
    # Small tensors: several threads only wait for each other on a busy machine.
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity(level)


def build(family: str, size: tuple[int, ...], **options: Any) -> Any:
    layers, width, heads, vocabulary, tokens, _ = size
    dropout = options.get("dropout", 0.0)
    if family == "demo":
        return GPT(
            GPTConfig(
                n_layer=layers,
                n_head=heads,
                n_embd=width,
                vocab_size=vocabulary,
                block_size=tokens,
                dropout=dropout,
                gradient_checkpointing=options.get("checkpointing", False),
            )
        )
    attention = options.get("attention", "sdpa")
    if family == "gpt2":
        config = transformers.GPT2Config(
            n_layer=layers,
            n_head=heads,
            n_embd=width,
            n_positions=tokens,
            vocab_size=vocabulary,
            resid_pdrop=dropout,
            attn_pdrop=dropout,
            embd_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation=attention,
        )
    else:
        config = transformers.AutoConfig.for_model(
            family,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            hidden_size=width,
            head_dim=8,
            intermediate_size=2 * width + 8,
            vocab_size=vocabulary,
            max_position_embeddings=tokens,
            attention_dropout=dropout,
        )
        config._attn_implementation = attention
    config.use_cache = options.get("cache", True)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    if options.get("checkpointing"):
        model.gradient_checkpointing_enable()
    return model


class Case:
    """A small model, its batch, and one training step of it."""

    def __init__(self, family: str, precision: str, size: tuple[int, ...], **options: Any) -> None:
        torch.manual_seed(0)
        model = build(family, size, **options)
        self.model = model.bfloat16() if precision == "bf16" else model
        self.model.train()
        self.demo = family == "demo"
        self.autocast = HALF[precision]
        self.accumulation = options.get("accumulation", 1)
        self.optimizer = options.get("optimizer", torch.optim.AdamW)(self.model.parameters())
        self.x = torch.randint(0, size[3], (size[5], size[4]))
        self.y = torch.randint(0, size[3], (size[5], size[4]))

    def forward(self) -> Any:
        context = (
            torch.autocast("cpu", dtype=self.autocast)
            if self.autocast
            else contextlib.nullcontext()
        )
        with context:
            if self.demo:
                return self.model(self.x, self.y)
            return self.model(input_ids=self.x, labels=self.y)

    def loss(self, output: Any) -> torch.Tensor:
        loss: torch.Tensor = output[1] if self.demo else output.loss
        return loss

    @property
    def scenario(self) -> Any:
        return read_scenario(
            [self.model],
            [self.optimizer],
            device=torch.device("cpu"),
            batch=batch_shape((self.x, self.y), {}),
            autocast_dtype=self.autocast,
            accumulation=self.accumulation,
        )

    def predict(self) -> Prediction:
        return predict(self.scenario)


def saved_bytes(case: Case) -> int:
    """Bytes of unique storages that saved-tensor hooks see, parameters and buffers apart."""
    model = case.model
    own = {t.untyped_storage()._cdata for t in [*model.parameters(), *model.buffers()]}
    found: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            found[storage._cdata] = storage
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = case.forward()
    del output
    return sum(s.nbytes() for s in found.values())


@pytest.mark.parametrize("size", SIZES, ids=["2x48", "3x64", "4x96"])
@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("family", ["demo", "gpt2", "llama"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_saved_bytes_are_exact(
    family: str, precision: str, size: tuple[int, ...], dropout: float
) -> None:
    case = Case(family, precision, size, dropout=dropout)
    recording = record(case.scenario)
    assert recording.saved_bytes + recording.copy_bytes == saved_bytes(case)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("cache", [True, False])
def test_saved_bytes_of_written_out_attention_are_exact(
    family: str, precision: str, dropout: float, cache: bool
) -> None:
    case = Case(family, precision, SIZES[0], dropout=dropout, attention="eager", cache=cache)
    recording = record(case.scenario)
    assert recording.saved_bytes + recording.copy_bytes == saved_bytes(case)


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("precision", HALF)
def test_saved_bytes_of_other_families_are_exact(family: str, precision: str) -> None:
    case = Case(family, precision, SIZES[1])
    recording = record(case.scenario)
    assert recording.saved_bytes + recording.copy_bytes == saved_bytes(case)


class Tracker(TorchDispatchMode):
    """Current and largest sum of living storages, by weak references."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, Any] = {}
        self.total = self.largest = 0

    def track(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.alive:
            return

        def died(_: object) -> None:
            self.alive.pop(key, None)
            self.total -= size

        self.alive[key] = weakref.ref(storage, died)
        self.total += size
        self.largest = max(self.largest, self.total)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor):
                self.track(leaf)
        return result

    def take(self) -> int:
        largest, self.largest = self.largest, self.total
        return largest


def phase_peaks(case: Case, steps: int = 2) -> dict[Phase, int]:
    """Largest allocated bytes in each phase of the last of some steps."""
    peaks: dict[Phase, int] = {}
    output = None
    with Tracker() as tracker:
        for tensor in [*case.model.parameters(), *case.model.buffers()]:
            tracker.track(tensor)
        for _ in range(steps):
            peaks = dict.fromkeys((Phase.FORWARD, Phase.BACKWARD), 0)
            for _ in range(case.accumulation):
                tracker.take()
                output = case.forward()
                loss = case.loss(output)
                peaks[Phase.FORWARD] = max(peaks[Phase.FORWARD], tracker.take())
                loss.backward()
                peaks[Phase.BACKWARD] = max(peaks[Phase.BACKWARD], tracker.take())
            case.optimizer.step()
            peaks[Phase.OPTIMIZER], peaks[Phase.IDLE] = tracker.take(), tracker.total
            case.optimizer.zero_grad()
    assert output is not None
    return peaks


def with_options(kind: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda parameters: kind(parameters, **options)


PEAK_CASES = [
    ("demo", "fp32", {}),
    ("demo", "autocast", {"dropout": 0.1}),
    ("demo", "fp32", {"checkpointing": True}),
    ("demo", "bf16", {"accumulation": 2}),
    ("gpt2", "fp32", {"optimizer": with_options(torch.optim.AdamW, foreach=True)}),
    ("gpt2", "bf16", {"dropout": 0.1}),
    ("gpt2", "autocast", {}),
    ("gpt2", "fp32", {"checkpointing": True}),
    ("llama", "fp32", {"optimizer": with_options(torch.optim.SGD, lr=0.1, momentum=0.9)}),
    ("llama", "bf16", {}),
    ("llama", "autocast", {"dropout": 0.1}),
    ("llama", "bf16", {"checkpointing": True, "accumulation": 2}),
]


@pytest.mark.parametrize(("family", "precision", "options"), PEAK_CASES)
def test_every_phase_peaks_within_two_percent(
    family: str, precision: str, options: dict[str, Any]
) -> None:
    case = Case(family, precision, SIZES[2], **options)
    prediction = case.predict()
    measured = phase_peaks(case)
    for phase, peak in measured.items():
        assert prediction.phases[phase].allocated == pytest.approx(peak, rel=0.02), phase
    assert prediction.peak.allocated == pytest.approx(max(measured.values()), rel=0.02)


@pytest.mark.parametrize(
    "optimizer",
    [
        with_options(torch.optim.AdamW, foreach=False),
        with_options(torch.optim.AdamW, foreach=True),
        with_options(torch.optim.AdamW, fused=True),
        with_options(torch.optim.Adam, weight_decay=0.1, amsgrad=True, foreach=False),
        with_options(torch.optim.Adam, weight_decay=0.1, maximize=True, foreach=True),
        with_options(torch.optim.SGD, lr=0.1, weight_decay=0.1, foreach=False),
        with_options(torch.optim.SGD, lr=0.1, weight_decay=0.1, foreach=True),
        with_options(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=False),
        with_options(
            torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=False
        ),
    ],
    ids=lambda o: "",
)
def test_temporaries_of_the_step(optimizer: Callable[..., Any]) -> None:
    case = Case("demo", "fp32", SIZES[0], optimizer=optimizer)
    prediction = case.predict()
    measured = phase_peaks(case)[Phase.OPTIMIZER]
    # The loss and single numbers of the step are not modelled.
    assert prediction.phases[Phase.OPTIMIZER].allocated == pytest.approx(measured, abs=256)


def test_autocast_copies_of_weights_are_a_class_of_their_own() -> None:
    case = Case("demo", "autocast", SIZES[0])
    forward = case.predict().phases[Phase.FORWARD]
    linear = [m for m in case.model.modules() if isinstance(m, torch.nn.Linear)]
    numel = sum(p.numel() for m in linear for p in m.parameters())
    assert forward.of(MemoryClass.AUTOCAST_CACHE) == 2 * numel


def test_dropout_that_is_off_keeps_no_masks() -> None:
    case = Case("demo", "fp32", SIZES[0], dropout=0.1)
    case.model.eval()
    recording = record(case.scenario)
    assert recording.saved_bytes == saved_bytes(case)


def test_masks_and_statistics_differ_on_cuda() -> None:
    case = Case("demo", "bf16", SIZES[0], dropout=0.1)
    cpu = case.predict()
    cuda = predict(case.scenario.replace(device="cuda"))
    terms = {t.name: t.bytes for t in cuda.terms}
    on_cpu = {t.name: t.bytes for t in cpu.terms}
    names = {n.split(" (")[0].split(",")[0] for n in terms}
    assert "attention weights" not in names
    assert "attention logsumexp" in names

    def of(found: dict[str, int], start: str) -> int:
        return sum(b for n, b in found.items() if n.startswith(start) and "backward" not in n)

    assert of(on_cpu, "mean and deviation") * 2 == of(terms, "mean and deviation")
