"""The demo's model, text and training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from vramscope.profiler.demo.corpus import Corpus
from vramscope.profiler.demo.gpt import GPT, GPTConfig
from vramscope.profiler.demo.training import build, demo_runs, evaluate, train
from vramscope.storage.reader import RunReader
from vramscope.storage.records import RunStatus

CPU = torch.device("cpu")
TINY = GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=8)
DEMO = [sys.executable, "-m", "vramscope.profiler.demo", "--device", "cpu"]
# One thread: tests share the machine's cores.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_the_head_is_tied_to_the_embedding() -> None:
    model = GPT(TINY)

    assert model.lm_head.weight is model.wte.weight
    assert model.config is TINY


def test_an_untrained_model_is_as_good_as_guessing() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(256, (4, 8))

    logits, loss = GPT(TINY)(tokens, tokens)

    assert logits.shape == (4, 8, 256)
    assert loss is not None
    assert loss.item() == pytest.approx(torch.log(torch.tensor(256.0)).item(), abs=0.2)


def test_attention_looks_only_backwards() -> None:
    torch.manual_seed(0)
    model = GPT(TINY).eval()
    tokens = torch.randint(256, (1, 8))
    changed = tokens.clone()
    changed[0, -1] += 1

    before, _ = model(tokens)
    after, _ = model(changed % 256)

    torch.testing.assert_close(before[:, :-1], after[:, :-1])


def test_checkpointing_changes_no_gradient() -> None:
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = GPT(replace(TINY, gradient_checkpointing=checkpointing, dropout=0.1))
        tokens = torch.randint(256, (2, 8))
        _, loss = model(tokens, tokens)
        assert loss is not None
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])

    for kept, computed_again in zip(*gradients, strict=True):
        assert torch.equal(kept, computed_again)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="n_embd=10 is not a multiple of n_head=4"):
        GPTConfig(n_embd=10, n_head=4)


def test_the_text_is_plain_and_large_enough() -> None:
    corpus = Corpus.bundled(seed=0)

    assert 3_000 < len(corpus.training) + len(corpus.validation) < 10_000
    assert int(corpus.training.max()) < 128


def test_targets_are_the_tokens_that_follow() -> None:
    inputs, targets = Corpus(bytes(range(100)), seed=0).batch(3, 10)

    assert torch.equal(targets, inputs + 1)
    assert int(targets.max()) < 90, "the held-out part was drawn from"


def test_the_second_run_differs_in_settings_but_not_in_model_or_tokens_a_step() -> None:
    first, second = demo_runs(CPU, steps=300, second_steps=100)

    assert (first.steps, first.micro_batches) == (300, 2)
    assert second.steps < first.steps
    assert second.model == first.model
    assert second.optimizer != first.optimizer
    tokens = [run.micro_batch_size * run.micro_batches for run in (first, second)]
    assert tokens[0] == tokens[1]


def test_training_learns_and_leaves_the_model_training() -> None:
    run = replace(demo_runs(CPU, steps=40, second_steps=0)[0], model=TINY, learning_rate=1e-2)
    model, optimizer = build(run, CPU)
    lines: list[str] = []

    losses = train(run, model, optimizer, report=lines.append)

    assert len(losses) == 80
    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])
    assert "step    1/40" in lines[0]
    evaluate(model, Corpus.bundled(seed=0))
    assert model.training


def test_both_runs_are_recorded_and_the_losses_are_those_of_the_bare_loop(tmp_path: Path) -> None:
    size = ["--steps", "6", "--second-steps", "3", "--detail-every", "5"]
    store = tmp_path / "demo.db"
    watched, bare = tmp_path / "watched", tmp_path / "bare"

    for how in (["--db", store, "--losses", watched], ["--no-profiler", "--losses", bare]):
        subprocess.run([*DEMO, *size, *how], check=True, env=ENVIRONMENT)

    assert len(watched.read_text().split()) == 6 * 2 + 3 * 4
    assert watched.read_bytes() == bare.read_bytes()
    with RunReader(str(store)) as reader:
        rows = reader.runs().rows
        assert {row.info.name: row.steps for row in rows} == {
            "demo-adamw": 6,
            "demo-sgd-momentum": 3,
        }
        assert {row.info.status for row in rows} == {RunStatus.COMPLETED}
        first = reader.run("demo-adamw")
        device = reader.devices(first.id)[0]
        assert device.id is not None
        assert {step.micro_steps for step in reader.iter_steps(first.id, device.id)} == {2}


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_told_to_stop_ends_cleanly(tmp_path: Path, stop: signal.Signals) -> None:
    store = tmp_path / "demo.db"
    command = [*DEMO, "--steps", "100000", "--db", str(store)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as demo:
        assert demo.stdout is not None
        assert "step    1/100000" in demo.stdout.readline()
        demo.send_signal(stop)
        output, errors = demo.communicate(timeout=60)

    assert demo.returncode == 130
    assert "what was recorded stays" in output
    assert "Traceback" not in errors
    with RunReader(str(store)) as reader:
        assert reader.run("demo-adamw").status is RunStatus.INTERRUPTED


def test_no_negative_number_of_steps() -> None:
    done = subprocess.run([*DEMO, "--steps", "-1"], capture_output=True, text=True)

    assert done.returncode == 2
    assert "-1 is negative" in done.stderr
