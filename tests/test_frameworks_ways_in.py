"""Trackers and callbacks of accelerate, Hugging Face's Trainer and Lightning, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from vramscope.storage.reader import RunReader
from vramscope.storage.records import RunStatus

STEPS = 5


def data() -> TensorDataset:
    return TensorDataset(torch.randn(STEPS * 8, 16), torch.randint(4, (STEPS * 8,)))


def only_run(store: Path) -> tuple[Any, list[Any], list[list[str]]]:
    """The one run of a store: itself, its steps, and the phases of the followed ones."""
    with RunReader(store) as reader:
        (row,) = reader.runs().rows
        (device,) = reader.devices(row.info.id)
        steps = list(reader.iter_steps(row.info.id, device.id))
        phases = [
            [p.phase.value for p in reader.phases(row.info.id, device.id, step.step)]
            for step in steps
            if step.detail
        ]
    return row.info, steps, phases


def test_accelerates_tracker_records_the_prepared_loop(store_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from vramscope.profiler.frameworks.accelerate import MemoryTracker

    tracker = MemoryTracker(run_name="tracked", store=store_path)
    accelerator = accelerate.Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        log_with=tracker,
        step_scheduler_with_optimizer=False,
    )
    accelerator.init_trackers("project", config={"lr": 1e-3})
    model = nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.log({"loss": 1.0}, step=1)
    accelerator.end_training()

    run, steps, _ = only_run(store_path)
    assert (run.name, run.status) == ("tracked", RunStatus.COMPLETED)
    assert [step.micro_steps for step in steps] == [2] * STEPS
    assert steps[-1].end.parameters == 4 * (16 * 4 + 4)
    assert tracker.tracker.run_id == run.id


class Samples(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": torch.randn(16), "labels": torch.tensor(index % 4)}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_the_trainers_callback_records_every_step(store_path: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from vramscope.profiler.frameworks.transformers import MemoryCallback

    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"),
        run_name="trained",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=STEPS,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    callbacks = [MemoryCallback(store=store_path)]
    trainer = transformers.Trainer(
        Classifier(), arguments, train_dataset=Samples(), callbacks=callbacks
    )
    trainer.train()

    run, steps, phases = only_run(store_path)
    assert (run.name, run.status) == ("trained", RunStatus.COMPLETED)
    assert [step.micro_steps for step in steps] == [2] * STEPS
    worked = [[name for name in step if name != "idle"] for step in phases]
    assert worked[-1] == ["forward", "backward"] * 2 + ["optimizer"]


def test_lightnings_callback_records_every_step_and_no_validation(store_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    from vramscope.profiler.frameworks.lightning import MemoryCallback

    class Model(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 4)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            self.layer(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    callback = MemoryCallback(run_name="lit", store=store_path)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    trainer.fit(Model(), DataLoader(data(), batch_size=8), DataLoader(data(), batch_size=8))

    run, steps, phases = only_run(store_path)
    assert (run.name, run.status) == ("lit", RunStatus.COMPLETED)
    assert [step.micro_steps for step in steps] == [1] * STEPS
    assert {"forward", "backward", "optimizer"} <= set(phases[-1])
    assert callback.profiler is None


def test_lightnings_callback_says_what_ended_a_run(store_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    from vramscope.profiler.frameworks.lightning import MemoryCallback

    class Broken(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 4)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if index == 2:
                raise ValueError("the labels are wrong")
            return self.layer(batch[0]).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[MemoryCallback(store=store_path)],
    )
    with pytest.raises(ValueError, match="labels are wrong"):
        trainer.fit(Broken(), DataLoader(data(), batch_size=8))

    run, _, _ = only_run(store_path)
    assert run.status is RunStatus.FAILED
    assert "labels are wrong" in run.status_message
