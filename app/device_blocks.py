"""A device as a whole as a table: every line at one instant or two, to the byte on hover."""

from __future__ import annotations

from collections.abc import Mapping

from .blocks import text
from .device_use import DEVICE_STACK, DeviceUse
from .format import DEVICE_COLOURS, DEVICE_HELP, DEVICE_LABELS, percent, size, whole_bytes


def device_table(uses: Mapping[str, DeviceUse]) -> str:
    """Whose a device's memory is; what the driver does not say is a dash.

    Args:
        uses: The device by the instant's name, as ``device_bars`` takes it.
    """
    head = "".join(f'<th class="r">{text(label)}</th>' for label in uses)
    rows = "".join(_row(name, uses) for name in device_lines(uses))
    return (
        f'<div class="vs-scroll"><table class="vs-table"><thead><tr><th>On the device</th>{head}'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def device_lines(uses: Mapping[str, DeviceUse]) -> list[str]:
    """The lines worth a row: all but those that are 0 or about what nobody can know."""
    lines = [n for n in DEVICE_STACK if any(getattr(use, n) != 0 for use in uses.values())]
    known = all(use.total is not None for use in uses.values())
    return [*lines, *(("free", "total") if known else ())]


def _row(name: str, uses: Mapping[str, DeviceUse]) -> str:
    colour = DEVICE_COLOURS.get(name)
    swatch = f'<span class="vs-swatch" style="background:{colour}"></span>' if colour else ""
    cells = "".join(_cell(name, use) for use in uses.values())
    total = ' class="t"' if name == "total" else ""
    return (
        f'<tr{total}><td><span class="vs-name" title="{text(DEVICE_HELP[name])}">{swatch}'
        f"<span>{DEVICE_LABELS[name]}</span></span></td>{cells}</tr>"
    )


def _cell(name: str, use: DeviceUse) -> str:
    value: int | None = getattr(use, name)
    hint = whole_bytes(value)
    if value is not None and use.total and name != "total":
        hint += f", {percent(value / use.total)} of the device"
    return f'<td class="r" title="{hint}">{size(value)}</td>'


__all__ = ["device_lines", "device_table"]
