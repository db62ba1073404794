"""Runs: every run in the store, with its peak, its headroom and how well it was predicted."""

from __future__ import annotations

import streamlit as st
from vramscope.app import blocks, data, runs_table, state, welcome
from vramscope.app.format import STATUS_LABELS, duration, md, size
from vramscope.storage.reader import RunSummary
from vramscope.storage.records import RunStatus

_ALL = "All"


def render() -> None:
    """The whole page."""
    welcome.style()
    st.title("Runs", anchor=False)
    if not welcome.has_runs():
        return
    _running_now()
    search, status = _filters()
    total = data.reader().runs(search=search, status=status, limit=1).total
    if total == 0:
        st.info("No run fits this filter.")
        return
    body = st.container()
    pages = -(-total // data.RUNS_PER_PAGE)
    page = st.pagination(pages, key="page", bind=state.BOUND) if pages > 1 else 1
    found = data.reader().runs(
        search=search,
        status=status,
        limit=data.RUNS_PER_PAGE,
        offset=(page - 1) * data.RUNS_PER_PAGE,
    )
    with body:
        _table(found.rows, total)


def _filters() -> tuple[str | None, RunStatus | None]:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        search = st.text_input(
            "Search", key="search", bind=state.BOUND, placeholder="Name or id", width=280
        )
        labels = [_ALL, *STATUS_LABELS.values()]
        chosen = st.selectbox("Status", labels, key="status", bind=state.BOUND, width=180)
    by_label = {label: status for status, label in STATUS_LABELS.items()}
    return search or None, by_label.get(chosen or _ALL)


def _running_now() -> None:
    if not data.reader().runs(status=RunStatus.RUNNING, limit=1).rows:
        return

    @st.fragment(run_every=2)
    def live() -> None:
        with welcome.store_errors():
            rows = data.reader().runs(status=RunStatus.RUNNING, limit=3).rows
            if not rows:
                st.rerun()
            for row in rows:
                _running_card(row)

    live()


def _running_card(row: RunSummary) -> None:
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        facts = [f"step {row.steps:,}" if row.steps is not None else "no step yet"]
        facts.append(f"peak {size(row.peak_allocated)}")
        facts.append(f"for {duration(runs_table.run_seconds(row.info))}")
        line = "".join(f"<span>{blocks.text(f)}</span>" for f in facts)
        st.html(
            f"<strong>{blocks.text(row.info.name, 80)}</strong>"
            f'<div class="vs-line">{blocks.badge(row.info.status)}{line}</div>',
            width="stretch",
        )
        st.page_link("views/run.py", label="Watch it live →", query_params={"run": row.info.id})


def _table(rows: tuple[RunSummary, ...], total: int) -> None:
    actions = st.container(horizontal=True, vertical_alignment="center")
    selection = st.dataframe(
        runs_table.frame(rows),
        key="runs_table",
        hide_index=True,
        column_config=runs_table.columns(rows),
        selection_mode=["multi-row", "single-cell"],
        on_select="rerun",
        placeholder="—",
        height="content",
    )["selection"]
    cells = [c for c in selection.get("cells", []) if c[1] == "Run"]
    if cells and cells[0][0] < len(rows):
        st.switch_page("views/run.py", query_params={"run": rows[cells[0][0]].info.id})
    chosen = [rows[n].info for n in selection.get("rows", []) if n < len(rows)]
    with actions:
        _actions([run.id for run in chosen], [run.name for run in chosen], total)


def _actions(ids: list[str], names: list[str], total: int) -> None:
    noun = "run" if total == 1 else "runs"
    if not ids:
        st.caption(f"{total:,} {noun}. Click a name to open it; tick two to compare them.")
        return
    if len(ids) == 1:
        st.page_link("views/run.py", label=f"Open {md(names[0], 40)}", query_params={"run": ids[0]})
        st.page_link("views/report.py", label="Report", query_params={"run": ids[0]})
        st.caption("Tick a second run to compare the two.")
        return
    label = f"Compare {md(names[0], 30)} with {md(names[1], 30)}"
    st.page_link("views/compare.py", label=label, query_params={"a": ids[0], "b": ids[1]})
    if len(ids) > 2:
        st.caption("Compare takes two runs; the first two are taken.")


if __name__ == "__main__":
    render()
