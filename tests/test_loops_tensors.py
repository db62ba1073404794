"""Tensors that are hard to count, in real loops: logits, adapters, views, 4 bits, checkpoints."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.storage.reader import RunReader
from vramscope.storage.records import MemoryUse, ModuleRecord, Phase, PhaseRecord, StepRecord

EVERY_STEP = ProfilerConfig(detail_every=1, predict=False)


@dataclass
class Recorded:
    """What the store holds of a run's first device; phases and modules are of its last step."""

    steps: list[StepRecord]
    phases: tuple[PhaseRecord, ...]
    modules: tuple[ModuleRecord, ...]

    def peak_of(self, phase: Phase) -> MemoryUse:
        (found,) = [p.peak for p in self.phases if p.phase is phase]
        return found


def read(path: Path) -> Recorded:
    with RunReader(path) as reader:
        run = reader.runs().rows[0].info.id
        device = reader.devices(run)[0].id
        assert device is not None
        steps = list(reader.iter_steps(run, device))
        last = steps[-1].step
        return Recorded(steps, reader.phases(run, device, last), reader.modules(run, device, last))


def train(
    path: Path,
    model: nn.Module,
    loss: Callable[[], torch.Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 2,
) -> Recorded:
    if optimizer is None:
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.1)
    with MemoryProfiler(model, optimizer, store=path, config=EVERY_STEP):
        for _ in range(steps):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()
    return read(path)


def saved_by_hooks(
    loss: Callable[[], torch.Tensor], others: list[torch.Tensor]
) -> tuple[int, dict[int, int]]:
    """What autograd asks to save: naively summed, and by storage without ``others``."""
    known = {t.untyped_storage()._cdata for t in others}
    kept: dict[int, tuple[torch.Tensor, int]] = {}
    naive = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal naive
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            naive += tensor.nbytes
            kept[storage._cdata] = (tensor.detach(), storage.nbytes())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss()
    return naive, {key: size for key, (_, size) in kept.items()}


def test_the_logits_of_a_big_vocabulary_are_kept_once_and_in_fp32(store_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sequence, vocabulary = 128, 128_256
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            use_cache=False,
        )
    ).bfloat16()
    ids = torch.randint(0, vocabulary, (1, sequence))

    def loss() -> torch.Tensor:
        value: torch.Tensor = model(input_ids=ids, labels=ids).loss
        return value

    naive, kept = saved_by_hooks(loss, [ids, *model.parameters(), *model.buffers()])
    logits = 4 * sequence * vocabulary
    assert logits == 65_667_072
    assert max(kept.values()) == logits
    assert naive > 2 * logits
    recorded = train(store_path, model, loss, steps=1)
    assert recorded.peak_of(Phase.FORWARD).activations == sum(kept.values())
    assert logits < sum(kept.values()) < 1.02 * logits
    fp32 = sum(m.activations for m in recorded.modules if m.dtype == "float32")
    assert logits <= fp32 <= 1.01 * logits
    assert sum(m.activations for m in recorded.modules) == sum(kept.values())


def test_an_activation_that_two_operators_save_counts_once(store_path: Path) -> None:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
    x = torch.randn(64, 1024)
    recorded = train(store_path, model, lambda: model(x).sum(), steps=1)
    peak = recorded.peak_of(Phase.FORWARD)
    assert peak.activations == 64 * 4096 * 4 == 1_310_720 - x.nbytes
    assert peak.temporaries is not None
    assert peak.temporaries >= x.nbytes


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_block_keeps_its_input_and_nothing_that_it_computes_again(
    store_path: Path, reentrant: bool
) -> None:
    class Segment(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(256, 256)
            self.inside = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inside, self.first(x), use_reentrant=reentrant).sum()

    model = Segment()
    x = torch.randn(256, 256)
    recorded = train(store_path, model, lambda: model(x), steps=1)
    (step,) = recorded.steps
    assert recorded.peak_of(Phase.FORWARD).activations == 262_144
    assert sum(m.activations for m in recorded.modules) == 262_144
    assert step.end.activations == 0


def test_a_checkpoint_around_a_cheap_layer_saves_nothing_and_that_is_seen(
    store_path: Path, tmp_path: Path
) -> None:
    class Wrong(nn.Module):
        def __init__(self, wrap: bool) -> None:
            super().__init__()
            self.wrap = wrap
            self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
                x = checkpoint(torch.relu, x, use_reentrant=False) if self.wrap else torch.relu(x)
            return x.sum()

    x = torch.randn(32, 128)
    kept = []
    for path, wrap in ((store_path, False), (tmp_path / "wrapped.db", True)):
        model = Wrong(wrap)
        recorded = train(path, model, lambda m=model: m(x), steps=1)  # type: ignore[misc]
        kept.append(recorded.peak_of(Phase.FORWARD).activations)
    plain, wrapped = kept
    assert plain is not None
    assert wrapped is not None
    assert wrapped >= plain


def test_adapters_train_a_little_and_keep_the_activations_of_the_whole(store_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=64, n_embd=256, n_layer=4, n_head=4, use_cache=False
    )
    base = GPT2LMHeadModel(config).bfloat16()
    adapters = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)
    model = get_peft_model(base, adapters)
    ids = torch.randint(0, 256, (1, 64))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    frozen = sum(
        size
        for size in {
            p.untyped_storage()._cdata: p.nbytes for p in model.parameters() if not p.requires_grad
        }.values()
    )
    assert {p.dtype for p in trained} == {torch.float32}
    count = sum(p.numel() for p in trained)
    assert count == 4 * 8 * (256 + 768) == 32_768
    recorded = train(
        store_path, model, lambda: model(input_ids=ids, labels=ids).loss, optimizer, steps=2
    )
    last = recorded.steps[-1].end
    assert last.parameters == frozen + 131_072
    assert last.gradients == 131_072
    assert last.optimizer_state == 262_176
    in_adapters = [m for m in recorded.modules if "lora_A" in m.module and m.dtype == "float32"]
    assert len(in_adapters) == 4
    assert sum(m.activations for m in in_adapters) >= 4 * 64 * 256 * 4  # inputs cast to fp32


def test_tied_viewed_and_expanded_parameters_count_what_they_hold(store_path: Path) -> None:
    class Aliases(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.zeros(1_000_000)
            self.a = nn.Parameter(flat[:500_000])
            self.b = nn.Parameter(flat[500_000:])
            self.wide = nn.Parameter(torch.zeros(1).expand(1_000_000))
            self.again = self.a

        def forward(self) -> torch.Tensor:
            return self.a.sum() + self.b.sum() + (self.wide * 2).sum()

    model = Aliases()
    assert sum(p.numel() for p in model.parameters()) * 4 == 8_000_000
    optimizer = torch.optim.SGD([model.a, model.b], lr=0.1)
    recorded = train(store_path, model, model, optimizer)
    for step in recorded.steps:
        assert step.end.parameters == 4_000_004
        assert step.end.gradients == 8_000_000  # autograd fills each in, the expanded one too


def test_parameters_on_the_meta_device_hold_nothing_and_are_no_device(store_path: Path) -> None:
    model = nn.Module()
    model.here = nn.Linear(10, 10)
    model.nowhere = nn.Linear(1000, 1000, device="meta")
    optimizer = torch.optim.AdamW(model.here.parameters())
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        for _ in range(2):
            model.here(torch.ones(2, 10)).sum().backward()
            optimizer.step()
    assert [(s.end.parameters, s.end.gradients) for s in read(store_path).steps] == [(440, 440)] * 2
    with RunReader(store_path) as reader:
        devices = reader.devices(reader.runs().rows[0].info.id)
    assert [d.kind for d in devices] == ["cpu"]


class FourBit(nn.Parameter):
    """Two weights in one byte, the scales beside it in ``quant_state``."""

    @staticmethod
    def of(rows: int, columns: int, *, double: bool) -> FourBit:
        weight = FourBit(torch.zeros(rows * columns // 2, 1, dtype=torch.uint8), False)
        blocks = rows * columns // 64
        if double:
            inner = SimpleNamespace(absmax=torch.zeros(blocks // 256), code=torch.zeros(256))
            weight.quant_state = SimpleNamespace(  # type: ignore[attr-defined]
                absmax=torch.zeros(blocks, dtype=torch.uint8),
                code=torch.zeros(16),
                offset=torch.tensor(0.5),
                state2=inner,
            )
        else:
            weight.quant_state = SimpleNamespace(  # type: ignore[attr-defined]
                absmax=torch.zeros(blocks), code=torch.zeros(16)
            )
        return weight


class EightBit(nn.Parameter):
    """One byte a weight, and a scale for each row in ``SCB``."""

    @staticmethod
    def of(rows: int, columns: int) -> EightBit:
        weight = EightBit(torch.zeros(rows, columns, dtype=torch.int8), False)
        weight.SCB = torch.zeros(rows)  # type: ignore[attr-defined]
        return weight


class Quantized(nn.Module):
    """A frozen quantized weight with something trainable after it."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.weight.detach().view(torch.uint8)[0, 0].float() + 1
        return self.head(x * scale).sum()


HEAD = 4 * 72


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (lambda: FourBit.of(4096, 4096, double=False), 8_388_608 + 1_048_640),
        (lambda: FourBit.of(4096, 4096, double=True), 8_388_608 + 267_332),
        (lambda: EightBit.of(1024, 1024), 1_048_576 + 4096),
    ],
    ids=["4-bit", "4-bit, double", "8-bit"],
)
def test_the_scales_of_a_quantized_weight_count_to_it(
    store_path: Path, weight: Callable[[], nn.Parameter], expected: int
) -> None:
    model = Quantized(weight())
    recorded = train(store_path, model, lambda: model(torch.ones(2, 8)))
    for step in recorded.steps:
        assert step.end.parameters == expected + HEAD
        assert step.end.gradients == HEAD


NO_BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is None


@pytest.mark.skipif(NO_BITSANDBYTES, reason="bitsandbytes is not installed")
@pytest.mark.parametrize(("double", "hidden"), [(False, 1_048_640), (True, 267_332)])
def test_a_real_4_bit_layer(store_path: Path, double: bool, hidden: int) -> None:
    import bitsandbytes as bnb

    layer = bnb.nn.Linear4bit(
        4096, 4096, bias=False, compress_statistics=double, quant_type="nf4"
    ).to("cpu")
    model = Quantized(layer.weight)
    recorded = train(store_path, model, lambda: model(torch.ones(2, 8)))
    assert recorded.steps[-1].end.parameters == 8_388_608 + hidden + HEAD


@pytest.mark.skipif(NO_BITSANDBYTES, reason="bitsandbytes is not installed")
def test_a_real_8_bit_optimizer(store_path: Path) -> None:
    import bitsandbytes as bnb

    model = nn.Linear(1024, 1024)
    optimizer: Any = bnb.optim.Adam8bit(model.parameters())
    recorded = train(store_path, model, lambda: model(torch.ones(1, 1024)).sum(), optimizer)
    weight = 2 * (1024 * 1024 + 1024 + 4 * 1024 * 1024 // 256)
    assert [s.end.optimizer_state for s in recorded.steps] == [weight + 2 * 4 * 1024] * 2
    assert recorded.steps[-1].paged is None


def test_float8_copies_of_weights_leave_the_weights_what_they_are(store_path: Path) -> None:
    """Training in fp8 keeps the weights in full and makes an fp8 copy for each product."""

    class Float8(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            low = self.linear.weight.to(torch.float8_e4m3fn)
            return (x @ low.to(torch.float32).t()).sum()

    model = Float8()
    optimizer = torch.optim.AdamW(model.parameters())
    recorded = train(store_path, model, lambda: model(torch.ones(4, 64)), optimizer)
    full = 4 * 64 * 64
    for step in recorded.steps:
        assert step.end.parameters == step.end.gradients == full
        assert step.end.optimizer_state == 2 * full + 4


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float64])
def test_wide_dtypes_count_their_bytes(store_path: Path, dtype: torch.dtype) -> None:
    model = nn.Linear(16, 16, dtype=dtype)
    x = torch.ones(2, 16, dtype=dtype)
    recorded = train(store_path, model, lambda: model(x).abs().sum())
    assert [s.end.parameters for s in recorded.steps] == [8 * 272] * 2
    assert [s.end.gradients for s in recorded.steps] == [8 * 272] * 2


def test_a_sparse_gradient_counts_what_the_batch_touched(store_path: Path) -> None:
    model = nn.Embedding(1000, 8, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    sizes = iter([3, 5, 3])
    seen: list[int] = []
    with MemoryProfiler(model, optimizer, store=store_path, config=EVERY_STEP):
        for rows in sizes:
            model(torch.arange(rows)).sum().backward()
            gradient = model.weight.grad
            assert gradient is not None
            seen.append(gradient._indices().nbytes + gradient._values().nbytes)
            optimizer.step()
            optimizer.zero_grad()
    assert [s.end.gradients for s in read(store_path).steps] == seen
    assert seen[0] == 3 * 8 + 3 * 8 * 4
