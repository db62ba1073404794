"""Run: one run, live while it trains."""

from __future__ import annotations

import streamlit as st
from vramscope.app import blocks, data, run_cards, run_inside, run_sections, state, welcome
from vramscope.app.chart_component import chart
from vramscope.app.charts import Which, memory_over_steps
from vramscope.app.format import count, duration, pl
from vramscope.app.runs_table import run_seconds
from vramscope.storage.reader import StepTable
from vramscope.storage.records import DeviceInfo, MemoryUse, RunInfo

_BOOKS = {"Peak of each step": "peak", "End of each step": "end"}


def render() -> None:
    """The whole page: a picker, then one fragment that refreshes itself while the run trains."""
    welcome.style()
    if not welcome.has_runs():
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.page_link("views/runs.py", label="← All runs")
        run = state.pick_run("run", "Run", data.run_choices(), width=320)
        if run is None:
            return
        st.page_link("views/compare.py", label="Compare", query_params={"b": run.id})
        st.page_link("views/plan.py", label="Plan from it", query_params={"run": run.id})
        st.page_link("views/report.py", label="Report", query_params={"run": run.id})
    live = data.is_live(run)

    @st.fragment(run_every=data.REFRESH_S if live else None)
    def body() -> None:
        with welcome.store_errors():
            now = data.reader().run(run.id)
            if live and not data.is_live(now):
                st.rerun()
            _body(now)

    body()


def _body(run: RunInfo) -> None:
    version = data.token(run)
    devices = data.reader().devices(run.id)
    _header(run, devices, version)
    if not devices:
        st.info("The run has begun; no device has reported yet.")
        return
    device = _pick_device(devices)
    view = data.device_view(run, device, version)
    st.html(blocks.cards(run_cards.run_cards(view)))
    _over_steps(run, view, version)
    run_sections.devices(run, devices, version)
    if view.last is None:
        run_sections.details(run, view, version)
        return
    run_sections.measured_beside_predicted(view)
    run_sections.on_the_device(view)
    step = run_inside.inside_a_step(run, view, version)
    run_sections.details(run, view, version, step)


def _header(run: RunInfo, devices: tuple[DeviceInfo, ...], version: data.Token) -> None:
    kinds = sorted({d.name or d.kind for d in devices})
    shown = f"{len(devices)} × {kinds[0]}" if len(devices) > 1 and kinds else "".join(kinds[:1])
    facts = [f"id {run.id}", f"started {run.started_at:%Y-%m-%d %H:%M} UTC"]
    facts.append(f"for {duration(run_seconds(run))}")
    if shown:
        facts.append(f"on {shown}")
    if run.lost_records:
        facts.append(f"{count(run.lost_records)} records could not be kept")
    events = data.events(data.store_url(), run.id, version)
    st.html(blocks.header(blocks.without_repeating(run, events), facts))
    if alert := blocks.out_of_memory(run, events):
        st.html(alert)


def _pick_device(devices: tuple[DeviceInfo, ...]) -> DeviceInfo:
    if len(devices) == 1:
        return devices[0]
    labels = [state.device_label(d) for d in devices]
    chosen = st.selectbox("Device", labels, key="device", bind=state.BOUND, width=280)
    return devices[labels.index(chosen)] if chosen in labels else devices[0]


def _over_steps(run: RunInfo, view: data.DeviceView, version: data.Token) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.subheader("Memory by class over steps", anchor=False)
        chosen = st.segmented_control(
            "Books",
            list(_BOOKS),
            default="Peak of each step",
            required=True,
            key="books",
            bind=state.BOUND,
            label_visibility="collapsed",
        )
    which: Which = "end" if _BOOKS.get(chosen or "") == "end" else "peak"
    key = f"steps-{run.id}-{view.id}"
    seen = state.chart_range(key)
    table = data.chart_steps(run, view.id, version, seen)
    events = data.events(data.store_url(), run.id, version)
    figure = memory_over_steps(
        table,
        capacity=view.device.total_bytes,
        predicted=_predicted(view, which),
        which=which,
        dark=state.dark(),
        events=[e for e in events if e.device in (None, view.id)],
        revision=key,
    )
    chart(
        figure,
        key=key,
        label=f"Memory by class over the steps of {pl(run.name)}",
        height=430,
        report_range=True,
    )
    _footnote(table, view, which)


def _predicted(view: data.DeviceView, which: Which) -> MemoryUse | None:
    if view.analytic is None:
        return None
    return view.analytic.peak if which == "peak" else view.predicted_end


def _footnote(table: StepTable, view: data.DeviceView, which: Which) -> None:
    notes = []
    if table.level > 1:
        notes.append(
            f"Each point is the step with the highest peak of {table.level:,}; zoom in for all."
        )
    carried = sum(1 for c in table.columns.get("carried", ()) if c)
    if which == "peak" and carried:
        notes.append(
            f"{run_cards.CARRIED} Between detail steps (▲) some figures of the peak are carried "
            "over from the last one."
        )
    if view.device.kind == "cpu":
        notes.append("On a CPU there is no caching allocator: reserved and capacity are unknown.")
    if notes:
        st.caption(" ".join(notes))


if __name__ == "__main__":
    render()
