"""``vramscope plan``: on which GPU a training setup fits, and what would make it fit."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text
from vramscope.profiler.analytic import Scenario
from vramscope.profiler.analytic.fit import Fit
from vramscope.profiler.analytic.gpus import Gpu
from vramscope.profiler.analytic.remedies import Remedy

from ..format import UNKNOWN, count, size
from ..plans import RULE, VERDICT_WORDS, Change, Largest, Plan, plan_of
from ..reports.run_json import prediction_mapping
from . import options, terminal
from .errors import ScenarioNotUsable
from .gpu_option import GpuName, gpu_of
from .model_counts import model_mapping, model_sentence
from .predict import print_left_out, print_phases, print_taken
from .scenario_options import takes_scenario
from .tables import Scale, add, say, table

EXAMPLES = (
    "vramscope plan --model config.json --precision bf16 --micro-batch 4 --sequence 2048",
    "vramscope plan scenario.yaml --gpu 'RTX 4090'",
    "vramscope plan config.json ds_z3.json --devices 8 --micro-batch 1 --sequence 4096 --gpu 40GiB",
    "vramscope plan scenario.yaml --gpu T4 --json",
)

_STYLES = {"yes": "green", "tight": "yellow", "no": "red", None: ""}


@takes_scenario
def plan_command(scenario: Scenario, gpu: GpuName = None, as_json: options.Json = False) -> None:
    """Say on which GPUs a training setup fits, and what would make it fit.

    Files and options are those of `predict`. For one GPU, the largest micro-batch and
    sequence that fit, and changes with the bytes they save and what they cost.
    """
    chosen = None if gpu is None else gpu_of(gpu)
    if scenario.device != "cuda":
        raise ScenarioNotUsable(
            f"device={scenario.device!r}: a plan is for GPUs; give --device cuda"
        )
    try:
        plan = plan_of(scenario, chosen)
    except ValueError as error:
        raise ScenarioNotUsable(str(error)) from error
    if as_json:
        terminal.print_json(plan_mapping(plan))
        return
    _print(terminal.out(), plan)


def _print(console: Console, plan: Plan) -> None:
    say(console, model_sentence(plan.scenario), "")
    record = plan.prediction.to_record(0)
    print_phases(console, record)
    say(console, "")
    _gpus(console, plan)
    say(console, "", *_focus(plan), "")
    _changes(console, plan.changes)
    print_taken(console, plan.scenario)
    print_left_out(console, record)


def _gpus(console: Console, plan: Plan) -> None:
    shown = plan.fits if plan.fit in plan.fits else (plan.fit, *plan.fits)
    sizes = [f.gpu.total_bytes for f in shown] + [f.needed_high for f in shown]
    scale = Scale.of(sizes)
    made = table(
        "On GPUs",
        ("GPU", "Memory", "Needed", "at least", "at most", "Headroom", "Verdict"),
        caption=f"{scale.caption}. {RULE}",
    )
    for each in shown:
        add(
            made,
            f"{each.gpu.name} ←" if each.gpu == plan.gpu else each.gpu.name,
            scale.number(each.gpu.total_bytes),
            scale.number(each.needed_bytes),
            scale.number(each.needed_low),
            scale.number(each.needed_high),
            scale.number(each.headroom_bytes, signed=True),
            Text(VERDICT_WORDS[each.verdict], style=_STYLES[each.verdict]),
        )
    console.print(made)


def _focus(plan: Plan) -> list[str]:
    lines = [f"On {plan.gpu.name}: {VERDICT_WORDS[plan.fit.verdict]}."]
    for name, found in (("micro-batch", plan.micro_batch), ("sequence", plan.sequence)):
        lines.append(f"Largest {name}: {largest_words(found)}.")
    if plan.way is None:
        lines.append("What would make it fit is not known: the peak is not predicted.")
    elif plan.way.steps:
        how = ", then ".join(step.change for step in plan.way.steps)
        end = "fits for sure" if plan.way.fits else "comes nearest, and still does not fit for sure"
        lines.append(f"With {how} it {end}: {size(plan.way.peak_bytes)} at the peak.")
    return lines


def largest_words(found: Largest) -> str:
    """How large something may become, in words."""
    if found.surely is None or found.at_most is None:
        return "not known"
    if found.at_most == 0:
        return "not even 1 fits"
    if found.surely == found.at_most:
        return f"{count(found.surely)} fits"
    if found.surely == 0:
        return f"none fits for sure, {count(found.at_most)} at most"
    return f"{count(found.surely)} fits for sure, {count(found.at_most)} at most"


def _changes(console: Console, changes: tuple[Change, ...]) -> None:
    if not changes:
        say(console, "No change that is known here would lower the peak.", "")
        return
    scale = Scale.of(c.remedy.saved_bytes for c in changes)
    made = table(
        "Changes, each alone",
        ("Change", "Price", "Fits then from", "Saves"),
        texts=3,
        caption=scale.caption,
    )
    for change in changes:
        remedy = change.remedy
        smallest = UNKNOWN if change.fits_from is None else change.fits_from.name
        add(made, remedy.change, remedy.price, smallest, scale.number(remedy.saved_bytes))
    console.print(made)


def plan_mapping(plan: Plan) -> dict[str, object]:
    """A plan as JSON has it: bytes, unknown as null."""
    prediction = prediction_mapping(plan.prediction.to_record(0))
    del prediction["device"]
    way = plan.way
    return {
        "model": model_mapping(plan.scenario),
        "prediction": prediction,
        "gpu": _gpu_mapping(plan.gpu),
        "fit": _fit_mapping(plan.fit),
        "largest": {
            name: {"surely": found.surely, "at_most": found.at_most}
            for name, found in (("micro_batch", plan.micro_batch), ("sequence", plan.sequence))
        },
        "fits_from": None if plan.fits_from is None else plan.fits_from.name,
        "gpus": [{"gpu": _gpu_mapping(each.gpu), **_fit_mapping(each)} for each in plan.fits],
        "changes": [
            {
                **_remedy_mapping(change.remedy),
                "fits_from": None if change.fits_from is None else change.fits_from.name,
            }
            for change in plan.changes
        ],
        "way_to_fit": None
        if way is None
        else {
            "fits": way.fits,
            "peak_bytes": way.peak_bytes,
            "steps": [_remedy_mapping(step) for step in way.steps],
        },
    }


def _gpu_mapping(gpu: Gpu) -> dict[str, object]:
    return {"name": gpu.name, "total_bytes": gpu.total_bytes, "source": gpu.source}


def _fit_mapping(fit: Fit) -> dict[str, object]:
    return {
        "verdict": fit.verdict,
        "needed_bytes": fit.needed_bytes,
        "needed_low": fit.needed_low,
        "needed_high": fit.needed_high,
        "headroom_bytes": fit.headroom_bytes,
    }


def _remedy_mapping(remedy: Remedy) -> dict[str, object]:
    return {
        "change": remedy.change,
        "price": remedy.price,
        "saved_bytes": remedy.saved_bytes,
        "peak_bytes": remedy.peak_bytes,
    }
