"""Options of ``vramscope predict`` as changes to a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vramscope.profiler.analytic import Known, Scenario

PRECISIONS: dict[str, dict[str, object]] = {
    "fp32": {"weight_dtype": "float32", "autocast": None},
    "bf16-mixed": {"weight_dtype": "float32", "autocast": "bfloat16"},
    "fp16-mixed": {"weight_dtype": "float32", "autocast": "float16"},
    "bf16": {"weight_dtype": "bfloat16", "autocast": None},
    "fp16": {"weight_dtype": "float16", "autocast": None},
}
"""Words for the usual pairs of weights' type and autocast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFlags:
    """What the command line says; ``None`` leaves the file's word."""

    precision: str | None = None
    dtype: str | None = None
    master_weights: bool | None = None
    optimizer: str | None = None
    momentum: float | None = None
    micro_batch: int | None = None
    sequence: int | None = None
    accumulation: int | None = None
    checkpointing: str | None = None
    attention: str | None = None
    devices: int | None = None
    zero_stage: int | None = None
    device: str | None = None

    @property
    def weight_dtype(self) -> str | None:
        """Type of the weights that the command line asks for."""
        said = PRECISIONS[self.precision]["weight_dtype"] if self.precision is not None else None
        return self.dtype if self.dtype is not None else None if said is None else str(said)

    def known(self) -> Known:
        """What decides where a file leaves a value open."""
        words = {"fp32": "no", "bf16-mixed": "bf16", "fp16-mixed": "fp16"}
        return Known(
            devices=self.devices,
            micro_batch=self.micro_batch,
            accumulation=self.accumulation,
            precision=words.get(self.precision or "", self.precision),
        )

    def apply(self, scenario: Scenario) -> Scenario:
        """The scenario with what the command line says.

        Raises:
            ValueError: Names the field, the value and what is allowed.
        """
        data: dict[str, Any] = dict(scenario.to_mapping())
        if self.precision is not None:
            data |= PRECISIONS[self.precision]
        data |= _given(
            weight_dtype=self.dtype,
            master_weights=self.master_weights,
            accumulation=self.accumulation,
            checkpointing=self.checkpointing,
            attention=self.attention,
            device=self.device,
        )
        self._apply_batch(data)
        self._apply_optimizer(data, len(scenario.optimizers))
        # A launcher's file has shared the devices out already.
        shared = self.devices is not None and scenario.parallelism.devices == self.devices
        self._apply_parallelism(data, None if shared else self.devices)
        return Scenario.from_mapping(data)

    def _apply_batch(self, data: dict[str, Any]) -> None:
        given = _given(micro_batch=self.micro_batch, sequence=self.sequence)
        if given:
            data["batch"] = {"micro_batch": 1, **(data.get("batch") or {}), **given}

    def _apply_optimizer(self, data: dict[str, Any], groups: int) -> None:
        given = _given(name=self.optimizer, momentum=self.momentum)
        if given:
            present = data.get("optimizers") or [{}] * groups
            data["optimizers"] = [{**group, **given} for group in present]

    def _apply_parallelism(self, data: dict[str, Any], devices: int | None) -> None:
        given = _given(world_size=devices, zero_stage=self.zero_stage)
        if not given:
            return
        merged = {**data.get("parallelism", {}), **given}
        if self.zero_stage is not None:
            merged["strategy"] = "zero"
        elif devices == 1:
            merged = {"strategy": "none", "world_size": 1}
        elif merged.get("strategy", "none") == "none":
            merged["strategy"] = "ddp"
        data["parallelism"] = merged


def _given(**values: object) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
