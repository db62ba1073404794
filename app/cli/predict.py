"""``vramscope predict``: what a training setup will hold, before it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from vramscope.profiler.analytic import Scenario, predict, read_scenario_files, scenario_schema
from vramscope.storage.records import MemoryUse, Phase, PredictionRecord

from ..format import CLASS_LABELS, PHASE_LABELS, UNKNOWN, size, whole_bytes
from ..reports.run_json import prediction_mapping
from . import options, terminal
from .books import add_books, largest_of
from .dry_run import dry_run
from .errors import ScenarioNotUsable
from .model_counts import model_mapping, model_sentence
from .scenario_flags import ScenarioFlags
from .tables import Scale, add, say, table

EXAMPLES = (
    "vramscope predict --model config.json --micro-batch 4 --sequence 2048",
    "vramscope predict scenario.yaml --precision bf16-mixed --terms",
    "vramscope predict scenario.yaml --zero-stage 3 --devices 8 --json",
    "vramscope predict config.json ds_z3.json --devices 8 --micro-batch 1 --sequence 4096",
    "vramscope predict config.json accelerate.yaml --micro-batch 1 --sequence 4096",
    "vramscope predict --model config.json --dry-run --micro-batch 4 --sequence 2048",
    "vramscope predict --schema > scenario.schema.json",
)


def predict_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="A scenario or a Hugging Face config.json, and beside it DeepSpeed and accelerate "
            "files. What a file is, is seen by its keys.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="FILE", help="The same as a config.json among the files."),
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
    paths = given_paths(files, model)
    scenario = None if run_dry else scenario_of(paths, flags)
    prediction = dry_run(_only(paths), flags) if scenario is None else _predict(scenario)
    if as_json:
        terminal.print_json(_mapping(prediction, scenario))
        return
    console = terminal.out()
    if scenario is not None:
        say(console, model_sentence(scenario), "")
    print_phases(console, prediction)
    if terms:
        _terms(console, prediction)
    if scenario is not None:
        print_taken(console, scenario)
    print_left_out(console, prediction)


def given_paths(files: list[Path] | None, model: Path | None) -> list[Path]:
    """The files of a command line, whichever way they were given."""
    paths = [*([model] if model is not None else []), *(files or [])]
    if not paths:
        raise typer.BadParameter("give a scenario file, or a model's config.json")
    return paths


def _only(paths: list[Path]) -> Path:
    if len(paths) > 1:
        raise typer.BadParameter("a dry run takes one file, the model's config.json")
    return paths[0]


def scenario_of(paths: list[Path], flags: ScenarioFlags) -> Scenario:
    """The scenario that files and options make.

    Raises:
        ScenarioNotUsable: Names the file, the field, the value and what is allowed.
    """
    try:
        read = read_scenario_files(paths, weight_dtype=flags.weight_dtype, known=flags.known())
        return flags.apply(read)
    except ValueError as error:
        raise ScenarioNotUsable(str(error)) from error


def _predict(scenario: Scenario) -> PredictionRecord:
    try:
        return predict(scenario).to_record(0)
    except ValueError as error:
        raise ScenarioNotUsable(str(error)) from error


def print_phases(console: Console, prediction: PredictionRecord) -> None:
    """Print the books of every phase, and the peak in a sentence."""
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
    if prediction.peak_phase is None:
        least = size(prediction.peak_low)
        return f"Peak: at least {least} allocated; a phase that may hold more is not predicted."
    peak = size(prediction.peak.allocated)
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


def print_taken(console: Console, scenario: Scenario) -> None:
    """Print what was taken where the files do not say."""
    if scenario.notes:
        say(console, "", "Taken where the files do not say:")
        say(console, *(f"  {note}" for note in scenario.notes))


def print_left_out(console: Console, prediction: PredictionRecord) -> None:
    """Print what the figures leave out."""
    if prediction.not_modelled:
        say(console, "", "Not in these figures:")
        say(console, *(f"  {note}" for note in prediction.not_modelled))


def _mapping(prediction: PredictionRecord, scenario: Scenario | None) -> dict[str, object]:
    record = prediction_mapping(prediction)
    del record["device"]
    return record if scenario is None else {"model": model_mapping(scenario), **record}
