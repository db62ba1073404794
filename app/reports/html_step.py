"""One detail step of the HTML report: its timeline, its peak, its phases and modules."""

from __future__ import annotations

from vramscope.storage.reader import RunReader

from ..blocks import text
from ..charts import phases_in_step, timeline_in_step
from ..peak_blocks import peak_groups_table, peak_sentence
from .html_page import Figures, figure_place
from .html_tables import modules_part, phases_table


def step_inside(
    reader: RunReader, run_id: str, device: int, step: int, capacity: int | None, figures: Figures
) -> str:
    """All that was recorded inside one step, as HTML; its figures are added to ``figures``.

    Args:
        reader: An open reader of the store.
        run_id: The run.
        device: Number of one of its devices in the store.
        step: One of the device's detail steps.
        capacity: Bytes of the device.
        figures: The report's figures.
    """
    record = reader.step(run_id, device, step)
    parts = [f"<h3>Inside step {step:,}</h3>"]
    if record is not None:
        parts.append(f"<p>{text(peak_sentence(record))}</p>")
    points = reader.timeline(run_id, device, step)
    if points:
        light, dark = (
            timeline_in_step(
                points,
                dark=is_dark,
                peak_module=None if record is None else record.peak_module,
                capacity=capacity,
                complete=record is None or record.complete,
            )
            for is_dark in (False, True)
        )
        figures[f"timeline-{device}"] = light, dark
        label = f"Memory by class inside step {step}"
        parts.append(figure_place(f"timeline-{device}", light["height"], label))
    groups = reader.peak_groups(run_id, device, step)
    if groups:
        parts.append("<h3>At the peak: the largest groups of tensors</h3>")
        parts.append(peak_groups_table(groups))
    parts.append(_phases(reader, run_id, device, step, figures))
    if modules := reader.modules(run_id, device, step):
        parts.append(modules_part(modules, step))
    return "".join(parts)


def _phases(reader: RunReader, run_id: str, device: int, step: int, figures: Figures) -> str:
    phases = reader.phases(run_id, device, step)
    if not phases:
        return ""
    light, dark = (phases_in_step(phases, is_dark) for is_dark in (False, True))
    figures[f"phases-{device}"] = light, dark
    return (
        "<h3>The peak of each phase</h3>"
        '<p class="note">The highest is the step’s peak; they are never added.</p>'
        f"{figure_place(f'phases-{device}', 320, 'Memory by class in each phase')}"
        f"<details><summary>Phases in figures</summary>{phases_table(phases)}</details>"
    )


__all__ = ["step_inside"]
