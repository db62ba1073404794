"""What a GPU keeps or chooses differently, emulated on fake CPU tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from vramscope.profiler.dryrun import DryRun, dry_run
from vramscope.storage.records import MemoryClass, PeakGroup

B, S, H, A = 2, 256, 128, 4
BF16 = torch.bfloat16


class Block(nn.Module):
    """GPT's block, with dropout, as the papers count it."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.norms = nn.ModuleList([nn.LayerNorm(H), nn.LayerNorm(H)])
        self.qkv, self.out = nn.Linear(H, 3 * H), nn.Linear(H, H)
        self.up, self.down = nn.Linear(H, 4 * H), nn.Linear(4 * H, H)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.fused:
            return functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        scores = (q @ k.transpose(-1, -2)).softmax(-1)
        return functional.dropout(scores, 0.1) @ v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).view(B, S, 3, A, H // A).permute(2, 0, 3, 1, 4)
        attended = self.attend(q, k, v).transpose(1, 2).reshape(B, S, H)
        x = x + functional.dropout(self.out(attended), 0.1)
        return x + functional.dropout(self.down(functional.gelu(self.up(self.norms[1](x)))), 0.1)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def run(
    build: Callable[[], nn.Module],
    call: Callable[[nn.Module], Tensor],
    device: Any = "cuda",
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd,
) -> DryRun:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        call(model).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return dry_run(
        build, step, build_optimizer=optimizer, device=device, steps=1, workspace_bytes=0
    )


def of_second(told: DryRun) -> int:
    return sum(m.activations for m in told.modules if m.module.startswith("1"))


@pytest.mark.parametrize(
    ("fused", "bytes_a_unit"), [(False, 34 + 5 * A * S / H), (True, 34)], ids=["plain", "flash"]
)
def test_a_block_keeps_what_the_papers_formula_says(fused: bool, bytes_a_unit: float) -> None:
    """Korthikanti et al. 2022, equation 2; statistics of norms and softmax are left out there."""

    def build() -> nn.Module:
        return nn.Sequential(Block(fused), Block(fused)).to(BF16)

    def call(model: nn.Module) -> Tensor:
        return model(torch.randn(B, S, H, dtype=BF16))

    on_cuda = of_second(run(build, call))
    assert on_cuda == pytest.approx(bytes_a_unit * S * B * H, rel=0.01)
    assert of_second(run(build, call, "cpu")) > 1.1 * on_cuda


def test_attention_by_the_kernel_that_fits() -> None:
    def kept(dtype: torch.dtype, heads: int = A, mask: bool = False) -> set[tuple[str, int]]:
        def call(model: nn.Module) -> Tensor:
            q = model(torch.randn(B * S, H, dtype=dtype)).view(B, S, A, H // A).transpose(1, 2)
            k = torch.randn(B, heads, S, H // A, dtype=dtype)
            bias = torch.ones(S, S, dtype=torch.bool).tril() if mask else None
            return functional.scaled_dot_product_attention(
                q, k, k, attn_mask=bias, is_causal=not mask, enable_gqa=heads != A
            )

        told = run(lambda: nn.Linear(H, H).to(dtype), call)
        return {(m.dtype, m.activations) for m in told.modules}

    def without_seeds(kept: set[tuple[str, int]]) -> set[tuple[str, int]]:
        return {k for k in kept if k[0] != "uint64"}

    one, sums = B * S * H, ("float32", B * A * S * 4)
    # Queries, output, and what serves as keys and values; one number a row of the scores.
    assert without_seeds(kept(BF16)) == {("bfloat16", 3 * one * 2), sums}
    assert without_seeds(kept(BF16, heads=2)) == {("bfloat16", 5 * one), sums}
    assert ("float32", 3 * one * 4 + sums[1]) in kept(torch.float32)
    # Grouped queries in float32 fit no kernel: scores are written out.
    assert sum(size for _, size in kept(torch.float32, heads=2)) > B * A * S * S * 4
    assert sum(size for _, size in kept(BF16, mask=True)) > S * S * 2


def test_autocast_casts_by_cudas_lists() -> None:
    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(H, H)
            self.norm = nn.LayerNorm(H)

        def forward(self, x: Tensor) -> list[Tensor]:
            y = self.layer(x)
            attended = functional.scaled_dot_product_attention(*[x.view(1, 1, -1, H)] * 3)
            return [y, y.softmax(-1), self.norm(y), y.pow(2), functional.gelu(y), attended]

    seen: list[list[torch.dtype]] = []

    def call(model: nn.Module) -> Tensor:
        with torch.autocast("cuda", BF16):
            outputs = model(torch.randn(S, H, device="cuda"))
        seen.append([o.dtype for o in outputs])
        return torch.stack([o.float().sum() for o in outputs])

    told = run(Probe, call)
    full = torch.float32
    assert seen == [[BF16, full, full, full, BF16, BF16]]
    assert told.step.peak.autocast_cache == H * H * 2 + 512  # weight and bias
    # Afterwards the CPU's own lists are in force again.
    with torch.autocast("cpu", BF16):
        half = nn.Linear(4, 4)(torch.ones(2, 4))
        assert half.dtype is BF16
        assert half.pow(2).dtype is BF16


def test_a_list_of_tensors_is_stepped_over_by_default() -> None:
    def temporaries(foreach: bool | None) -> int:
        told = run(
            lambda: nn.Sequential(*(nn.Linear(H, H, bias=False) for _ in range(4))),
            lambda model: model(torch.randn(2, H)),
            optimizer=lambda p: torch.optim.AdamW(p, foreach=foreach),
        )
        assert told.step.peak_phase == "optimizer"
        return told.step.peak.temporaries or 0

    whole = 4 * H * H * 4
    assert temporaries(None) == temporaries(True)
    assert whole <= temporaries(True) < 1.05 * whole
    assert temporaries(False) < whole


def test_rms_norm_keeps_its_input_and_a_number_a_row() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(H, H), nn.RMSNorm(H)).to(BF16)

    def call(model: nn.Module) -> Tensor:
        return model(torch.randn(S, H, dtype=BF16))

    kept = {(m.module, m.dtype): m.activations for m in run(build, call).modules}
    assert kept == {("1", "bfloat16"): S * H * 2, ("1", "float32"): S * 4}
    on_cpu = {(m.module, m.dtype) for m in run(build, call, "cpu").modules}
    assert ("1", "float32") in on_cpu


def test_cuda_means_the_fake_tensors_device() -> None:
    def call(model: nn.Module) -> Tensor:
        x = torch.randn(4, H).to("cuda", non_blocking=True) + torch.ones(4, H).cuda()
        return model(x + torch.zeros(4, H, device=torch.device("cuda", 0)))

    told = run(lambda: nn.Linear(H, H), call)
    groups = [r for r in told.records if isinstance(r, PeakGroup)]
    assert (MemoryClass.PARAMETERS, "128×128") in {(g.memory_class, g.shape) for g in groups}


def test_each_thread_that_multiplies_matrices_has_a_workspace() -> None:
    def step(model: nn.Module) -> None:
        x = torch.randn(4, H, requires_grad=True)
        model(x).sum().backward()

    def infer(model: nn.Module) -> None:
        with torch.no_grad():
            model(torch.randn(4, H))

    def scratch(build: Callable[[], nn.Module], step: Callable[[Any], None]) -> int:
        without = dry_run(build, step, workspace_bytes=0).step.peak.temporaries or 0
        return (dry_run(build, step, workspace_bytes=1 << 20).step.peak.temporaries or 0) - without

    assert scratch(lambda: nn.Linear(H, H), infer) == 1 << 20
    assert scratch(lambda: nn.Linear(H, H), step) == 2 << 20
    assert scratch(nn.Tanh, step) == 0
    on_cpu = dry_run(lambda: nn.Linear(H, H), step, device="cpu")
    assert (on_cpu.step.peak.allocated or 0) < 1 << 20


def test_a_warm_start_is_the_second_step() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(H, H), nn.Tanh(), nn.Linear(H, H))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.randn(4, H)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    second = dry_run(build, step, build_optimizer=torch.optim.Adam)
    warm = dry_run(build, step, build_optimizer=torch.optim.Adam, steps=1, warm_start=True)
    assert warm.step.peak == second.step.peak
    assert warm.step.end == second.step.end
