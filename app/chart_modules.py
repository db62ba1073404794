"""The figure of what every module keeps for backward, inside the modules around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vramscope.storage.records import MemoryClass, ModuleRecord

from .chart_layout import Figure, base_layout, empty
from .format import CLASS_COLOURS, module_path, palette, percent, pl, size, whole_bytes

ITSELF = "itself"
"""What a module keeps outside its children, beside them."""

_ROW = 17
_LABEL = 26
_ONE_LINE = "%{label}  %{text}"
_TWO_LINES = "%{label}<br>%{text}"
_TWO_LINES_FROM = 40
"""Pixels of height from which name and size stand under each other: narrow columns fit them."""

_SMALLEST_BOX = 9
"""Levels whose boxes would on average be lower, in pixels, open when a module is clicked."""

_SMALLEST_PART = 1 / 2000
"""Modules that keep less of the whole are drawn together, in the module around them."""


@dataclass(slots=True)
class _Node:
    """A module with all that is inside it, in bytes."""

    path: str
    own: int = 0
    total: int = 0
    dtypes: dict[str, int] = field(default_factory=dict)
    children: dict[str, _Node] = field(default_factory=dict)


def modules_icicle(modules: Sequence[ModuleRecord], *, dark: bool = False) -> Figure:
    """Bytes kept for backward by module: the root at the left, what is inside to its right.

    A module is as high as what it and its children keep together; what it keeps itself, beside
    them, has a box of its own. The shade follows the size.

    Args:
        modules: The modules of one step, a record for each module and dtype.
        dark: Colours for a dark page.
    """
    root = _without_chains(_tree(modules))
    if root.total <= 0:
        return empty("No module kept anything for backward at this step.", dark)
    ids: list[str] = []
    labels: list[str] = []
    parents: list[str] = []
    values: list[int] = []
    hovers: list[str] = []

    def add(place: str, parent: str, label: str, total: int, hover: str) -> None:
        ids.append(place)
        parents.append(parent)
        labels.append(pl(label))
        values.append(total)
        hovers.append(hover)

    def walk(node: _Node, place: str, parent: str, around: str | None) -> None:
        add(place, parent, _label(node.path, around), node.total, _hover(node, root.total))
        shown = [c for c in node.children.values() if c.total >= _SMALLEST_PART * root.total]
        small = [c for c in node.children.values() if c.total < _SMALLEST_PART * root.total]
        for child in _in_order(shown):
            walk(child, f"model.{child.path}", place, node.path)
        if small:
            rest = sum(c.total for c in small)
            words = f"{len(small)} smaller"
            add(f"{place}|small", place, words, rest, f"{words} modules<br>{size(rest)}")
        if node.own and (shown or small):
            where = pl(module_path(node.path), 80)
            note = f"<b>{where}</b>, outside its children<br>{size(node.own)}"
            add(f"{place}|own", place, ITSELF, node.own, f"{note} · {whole_bytes(node.own)}")

    walk(root, "model", "", None)
    leaves = len(set(ids) - set(parents))
    height = min(max(_ROW * leaves + 16, 220), 720)
    colours = palette(dark)
    layout = base_layout(dark, revision="modules")
    layout.update(
        margin={"l": 0, "r": 0, "t": 4, "b": 4},
        hovermode="closest",
        uniformtext={"minsize": 10, "mode": "hide"},
    )
    trace = {
        "type": "icicle",
        "ids": ids,
        "labels": labels,
        "parents": parents,
        "values": values,
        "branchvalues": "total",
        "sort": False,
        "maxdepth": _levels_shown(root, height),
        "text": [size(v) for v in values],
        "texttemplate": [
            _TWO_LINES if v / root.total * height >= _TWO_LINES_FROM else _ONE_LINE for v in values
        ],
        "textposition": "middle left",
        "textfont": {"color": colours.text, "size": 12},
        "customdata": hovers,
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "colors": [_shade(v / root.total) for v in values],
            "line": {"width": 1, "color": colours.background},
        },
        "leaf": {"opacity": 1},
        "root": {"color": _shade(1)},
        "tiling": {"orientation": "h", "pad": 1},
        "pathbar": {"visible": False},
    }
    return {"data": [trace], "layout": layout, "narrow": {}, "height": height}


def _tree(modules: Iterable[ModuleRecord]) -> _Node:
    """Modules in the modules around them; every node holds the sum of what is inside."""
    root = _Node("")
    for module in modules:
        if module.activations <= 0:
            continue
        node, path = root, ""
        _put(node, module)
        for part in module.module.split(".") if module.module else ():
            path = f"{path}.{part}" if path else part
            node = node.children.setdefault(part, _Node(path))
            _put(node, module)
        node.own += module.activations
    return root


def _without_chains(node: _Node) -> _Node:
    """The tree with a module that only wraps another left out, except at the root."""
    for name, child in node.children.items():
        while not child.own and len(child.children) == 1:
            (child,) = child.children.values()
        node.children[name] = _without_chains(child)
    return node


def _levels_shown(root: _Node, height: int) -> int:
    """Levels from the root of which a usual box is high enough to be read."""
    level, depth = [root], 1
    while True:
        level = [child for node in level for child in node.children.values()]
        if not level or len(level) * _SMALLEST_BOX > height:
            break
        depth += 1
    return max(depth, 2)


def _in_order(children: Sequence[_Node]) -> list[_Node]:
    """A list's modules in its order, others by size."""
    if all(child.path.rpartition(".")[2].isdigit() for child in children):
        return sorted(children, key=lambda c: int(c.path.rpartition(".")[2]))
    return sorted(children, key=lambda c: -c.total)


def _put(node: _Node, module: ModuleRecord) -> None:
    node.total += module.activations
    node.dtypes[module.dtype] = node.dtypes.get(module.dtype, 0) + module.activations


def _label(path: str, around: str | None) -> str:
    """What a module adds to the one around it; a number stands with the list that it counts."""
    if around is None:
        return "model"
    added = path.removeprefix(f"{around}.")
    if added.split(".")[0].isdigit() and around:
        added = f"{around.rpartition('.')[2]}.{added}"
    return module_path(added, _LABEL)


def _hover(node: _Node, whole: int) -> str:
    lines = [
        f"<b>{pl(module_path(node.path), 80)}</b>",
        f"{size(node.total)} · {percent(node.total / whole)} · {whole_bytes(node.total)}",
    ]
    split = sorted(node.dtypes.items(), key=lambda item: -item[1])
    if any(name for name, _ in split):
        lines.append(" · ".join(f"{pl(name) or 'unknown'} {size(v)}" for name, v in split))
    return "<br>".join(lines)


def _shade(part: float) -> str:
    """The activations' hue, stronger for more: see-through, so that it reads on any page."""
    hue = CLASS_COLOURS[MemoryClass.ACTIVATIONS]
    red, green, blue = (int(hue[n : n + 2], 16) for n in (1, 3, 5))
    return f"rgba({red},{green},{blue},{0.22 + 0.38 * min(part, 1.0) ** 0.5:.2f})"


__all__ = ["modules_icicle"]
