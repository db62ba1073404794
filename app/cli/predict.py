"""``vramscope predict``: what a training setup will hold, before it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from vramscope.profiler.analytic import predict, read_scenario_file, scenario_schema
from vramscope.storage.records import MemoryUse, Phase, PredictionRecord

from ..format import CLASS_LABELS, PHASE_LABELS, UNKNOWN, size, whole_bytes
from ..reports.run_json import prediction_mapping
from . import options, terminal
from .books import add_books, largest_of
from .dry_run import dry_run
from .errors import ScenarioNotUsable
from .scenario_flags import ScenarioFlags
from .tables import Scale, add, say, table

EXAMPLES = (
    "vramscope predict --model config.json --micro-batch 4 --sequence 2048",
    "vramscope predict scenario.yaml --precision bf16-mixed --terms",
    "vramscope predict scenario.yaml --zero-stage 3 --devices 8 --json",
    "vramscope predict --model config.json --dry-run --micro-batch 4 --sequence 2048",
    "vramscope predict --schema > scenario.schema.json",
)


def predict_command(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="SCENARIO", help="A scenario file, YAML or JSON; see --schema."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="FILE", help="A Hugging Face config.json instead."),
    ] = None,
    precision: options.Precision = None,
    dtype: options.Dtype = None,
    master_weights: options.MasterWeights = None,
    optimizer: options.Optimizer = None,
    momentum: options.Momentum = None,
    micro_batch: options.MicroBatch = None,
    sequence: options.Sequence = None,
    accumulation: options.Accumulation = None,
    checkpointing: options.Checkpointing = None,
    attention: options.Attention = None,
    devices: options.Devices = None,
    zero_stage: options.ZeroStage = None,
    device: options.Device = None,
    run_dry: options.DryRun = False,
    terms: Annotated[
        bool, typer.Option("--terms", help="List every summand with its formula filled in.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a scenario file, and end.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Predict what training will hold, by memory class and phase.

    The figures are for one device. Options change what the file says. What the
    prediction leaves out is named under it.
    """
    if schema:
        terminal.print_json(scenario_schema())
        return
    flags = ScenarioFlags(
        precision=precision,
        dtype=dtype,
        master_weights=master_weights,
        optimizer=optimizer,
        momentum=momentum,
        micro_batch=micro_batch,
        sequence=sequence,
        accumulation=accumulation,
        checkpointing=checkpointing,
        attention=attention,
        devices=devices,
        zero_stage=zero_stage,
        device=device,
    )
    path = _only(scenario, model)
    prediction = dry_run(path, flags) if run_dry else _predict(path, flags)
    if as_json:
        terminal.print_json(_mapping(prediction))
        return
    console = terminal.out()
    _phases(console, prediction)
    if terms:
        _terms(console, prediction)
    _left_out(console, prediction)


def _only(scenario: Path | None, model: Path | None) -> Path:
    if scenario is not None and model is not None:
        raise typer.BadParameter("give a scenario file or --model, not both")
    path = scenario or model
    if path is None:
        raise typer.BadParameter("give a scenario file, or a config.json with --model")
    return path


def _predict(path: Path, flags: ScenarioFlags) -> PredictionRecord:
    try:
        return predict(flags.apply(read_scenario_file(path))).to_record(0)
    except ValueError as error:
        raise ScenarioNotUsable(str(error)) from error


def _phases(console: Console, prediction: PredictionRecord) -> None:
    order = [phase for phase in Phase if phase in prediction.phases]
    books: list[MemoryUse] = [prediction.phases[phase] for phase in order]
    scale = Scale.of(largest_of(prediction.peak, *books))
    names = ["step end" if phase is Phase.IDLE else PHASE_LABELS[phase] for phase in order]
    caption = f"{scale.caption}, at each phase's own peak; a phase is not added to another."
    made = table(
        "Predicted for one device", ("", _peak_heading(prediction), *names), caption=caption
    )
    add_books(made, (prediction.peak, *books), scale)
    console.print(made)
    say(console, "", _sentence(prediction))


def _peak_heading(prediction: PredictionRecord) -> str:
    return "Peak" if prediction.peak_phase is not None else "At least"


def _sentence(prediction: PredictionRecord) -> str:
    peak = size(prediction.peak.allocated)
    if prediction.peak_phase is None:
        return f"Peak: at least {peak} allocated; a phase that may hold more is not predicted."
    low, high = prediction.peak_low, prediction.peak_high
    band = ""
    if low is not None and high is not None and low != high:
        band = f", between {size(low)} and {size(high)} by the software stack"
    return f"Peak: {peak} allocated in {PHASE_LABELS[prediction.peak_phase]}{band}."


def _terms(console: Console, prediction: PredictionRecord) -> None:
    made = table("Terms", ("Class", "Term", "Formula", "Source", "Bytes"), texts=4)
    for term in prediction.terms:
        label = UNKNOWN if term.memory_class is None else CLASS_LABELS[term.memory_class]
        add(made, label, term.name, term.formula, term.source, whole_bytes(term.bytes))
    say(console, "")
    console.print(made)


def _left_out(console: Console, prediction: PredictionRecord) -> None:
    if prediction.not_modelled:
        say(console, "", "Not in these figures:")
        say(console, *(f"  {note}" for note in prediction.not_modelled))


def _mapping(prediction: PredictionRecord) -> dict[str, object]:
    record = prediction_mapping(prediction)
    del record["device"]
    return record
