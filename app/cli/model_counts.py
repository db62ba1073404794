"""How many parameters the model of a scenario has."""

from __future__ import annotations

from vramscope.profiler.analytic import Scenario

from ..format import size


def model_mapping(scenario: Scenario) -> dict[str, object]:
    """The model's class and its counts, for JSON."""
    tensors = scenario.inventory
    return {
        "class": scenario.model_class,
        "parameters": tensors.numel,
        "parameters_with_tied_counted_twice": tensors.numel + tensors.tied_numel,
        "parameter_bytes": sum(t.held_bytes * n for t, n in tensors.counted()),
        "buffers": tensors.buffer_numel,
        "buffer_bytes": sum(tensors.buffers),
    }


def model_sentence(scenario: Scenario) -> str:
    """The model in one line."""
    tensors = scenario.inventory
    held = size(sum(t.held_bytes * n for t, n in tensors.counted()))
    twice = f" ({tensors.numel + tensors.tied_numel:,} with tied ones counted twice)"
    return (
        f"{scenario.model_class or 'Model'}: {tensors.numel:,} parameters"
        f"{twice if tensors.tied_numel else ''}, {held}"
    )
