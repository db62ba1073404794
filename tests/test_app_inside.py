"""The parts of the Run page that explain: inside a step, at the peak, modules, out of memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from vramscope.app import blocks
from vramscope.app.peak_blocks import peak_groups_table, peak_sentence
from vramscope.storage.records import (
    Event,
    EventKind,
    MemoryClass,
    MemoryUse,
    PeakGroup,
    Phase,
    RunInfo,
    RunStatus,
    StepRecord,
)

MIB = 2**20
MAIN = Path(__file__).resolve().parents[1] / "app" / "main.py"
HOSTILE = "![x](http://evil.invalid/x.png) <img src=http://evil.invalid/y.png>"


pytestmark = pytest.mark.usefixtures("store")


def opened(**query: str) -> AppTest:
    at = AppTest.from_file(str(MAIN), default_timeout=20)
    for name, value in query.items():
        at.query_params[name] = value
    at.switch_page("views/run.py")
    at.run()
    assert not at.exception, at.exception
    return at


def html(at: AppTest) -> str:
    return " ".join(element.proto.body for element in at.get("html"))


def words(at: AppTest) -> str:
    return re.sub(r"<[^>]+>", " ", html(at))


def charts(at: AppTest) -> list[str]:
    """What the charts on the page show, in words."""
    return re.findall(
        r'\\?"label\\?":\s*\\?"([^"\\]+)', " ".join(map(_proto, at.get("bidi_component")))
    )


def _proto(element: Any) -> str:
    return str(element.proto)


def sentences(at: AppTest) -> list[str]:
    return [m.value.replace("\\", "") for m in at.markdown]


def test_a_detail_step_has_its_timeline_its_peak_and_its_phases(
    recorded: Callable[..., Path],
) -> None:
    recorded()

    at = opened()

    assert "Memory by class inside step 300" in charts(at)
    assert "Memory by class at the peak of every phase of step 300" in charts(at)
    (sentence,) = [s for s in sentences(at) if s.startswith("The peak of step 300")]
    assert "was reached in forward, in transformer.h.0.mlp; activations hold" in sentence
    assert re.search(r"Activations\s+8×256×2048\s+float32\s+12\s+90\.00 MiB", words(at))


def test_another_step_is_a_choice_away_for_all_parts(recorded: Callable[..., Path]) -> None:
    recorded()
    at = opened()

    at.selectbox(key="step").set_value("50").run()

    assert not at.exception
    assert "Memory by class inside step 50" in charts(at)
    assert "Bytes kept for backward by module at step 50" in charts(at)
    assert any(s.startswith("The peak of step 50,") for s in sentences(at))


def test_a_store_of_before_shows_the_phases_alone(recorded: Callable[..., Path]) -> None:
    recorded(timeline=False)

    at = opened()

    assert not [c for c in charts(at) if "inside step" in c]
    assert "Memory by class at the peak of every phase of step 300" in charts(at)
    assert "largest groups" not in words(at)


def test_without_a_detail_step_the_section_says_so(recorded: Callable[..., Path]) -> None:
    recorded(unknown=True, predicts=False, steps=5)

    at = opened()

    assert "Inside a step" in [s.value for s in at.subheader]
    assert any("No detail step yet" in c.value for c in at.caption)


def test_modules_are_drawn_and_listed(recorded: Callable[..., Path]) -> None:
    recorded()

    at = opened()

    assert "Bytes kept for backward by module at step 300" in charts(at)
    first = at.dataframe[0].value.iloc[0]
    assert (first["Module"], first["Dtypes"]) == ("transformer.h.0.mlp", "float32")


def test_no_module_says_so(recorded: Callable[..., Path]) -> None:
    recorded(modules=0)

    at = opened()

    assert any("No module was recorded at step 300" in c.value for c in at.caption)


def test_out_of_memory_stands_at_the_top_with_what_would_have_helped(
    recorded: Callable[..., Path],
) -> None:
    message = f"OutOfMemoryError: Tried {HOSTILE}"
    recorded(
        steps=60,
        oom_at=60,
        status=RunStatus.OUT_OF_MEMORY,
        message=message,
        oom_message=f"{message}\nPredicted to take less: 8-bit optimizer state: 5.0 MiB less.",
    )

    at = opened()

    bodies = [element.proto.body for element in at.get("html")]
    alert = next(n for n, body in enumerate(bodies) if "vs-alert" in body and "<style" not in body)
    cards = next(n for n, body in enumerate(bodies) if 'class="vs-cards"' in body)
    assert alert < cards
    assert "Ran out of memory at step 60, in forward" in bodies[alert]
    assert '<p class="vs-way">Predicted to take less' in bodies[alert]
    assert "<img" not in html(at)
    assert words(at).count("Tried") == 2, "in the callout and among the events, not in the header"
    assert re.search(r"Steps\s+60\s+the last broke off after", words(at))


def run(status: RunStatus, message: str | None = None) -> RunInfo:
    return RunInfo(
        id="x", name="x", status=status, status_message=message, started_at=datetime.now(UTC)
    )


def oom(message: str = "no memory", phase: Phase | None = None) -> Event:
    return Event(kind=EventKind.OOM, at_ns=0, message=message, step=9, phase=phase)


def test_no_callout_where_memory_sufficed() -> None:
    note = Event(kind=EventKind.NOTE, at_ns=0, message="hello")

    assert blocks.out_of_memory(run(RunStatus.COMPLETED), [note]) == ""


def test_a_run_that_went_on_says_so_and_is_no_error() -> None:
    shown = blocks.out_of_memory(run(RunStatus.COMPLETED), [oom(), oom(), oom()])

    assert "Ran out of memory at step 9; the run went on" in shown
    assert "2 more such events before it" in shown
    assert "vs-was" in shown


def test_without_an_event_the_runs_own_message_is_shown() -> None:
    ended = run(RunStatus.OUT_OF_MEMORY, "MemoryError")

    assert '<p class="vs-error">MemoryError</p>' in blocks.out_of_memory(ended, [])
    assert blocks.without_repeating(ended, []).status_message is None


def test_a_message_that_the_callout_does_not_hold_stays_in_the_header() -> None:
    ended = run(RunStatus.OUT_OF_MEMORY, "another error")

    assert blocks.without_repeating(ended, [oom()]).status_message == "another error"
    failed = run(RunStatus.FAILED, "no memory")
    assert blocks.without_repeating(failed, [oom()]) is failed


def test_the_callout_leaves_out_an_idle_phase() -> None:
    shown = blocks.out_of_memory(run(RunStatus.OUT_OF_MEMORY), [oom(phase=Phase.IDLE)])

    assert "at step 9</h2>" in shown


USE = MemoryUse(parameters=60 * MIB, kv_cache=30 * MIB, activations=10 * MIB, allocated=100 * MIB)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"peak_phase": Phase.BACKWARD, "peak_module": "h.3.mlp"},
            "The peak of step 300, 100.0 MiB, was reached in backward, in h.3.mlp; "
            "parameters hold 60.0 % of it, KV cache 30.0 %.",
        ),
        (
            {"peak_phase": Phase.OPTIMIZER, "peak_module": ""},
            "The peak of step 300, 100.0 MiB, was reached in the optimizer's step, in the model "
            "itself; parameters hold 60.0 % of it, KV cache 30.0 %.",
        ),
        (
            {"complete": False, "peak": MemoryUse(allocated=MIB)},
            "The peak of step 300, as far as it came, 1.00 MiB, was reached at a place that is "
            "not known.",
        ),
        ({"peak": MemoryUse()}, "The peak of step 300 is not known."),
    ],
)
def test_the_peak_in_a_sentence(
    changes: dict[str, Any], said: str, make_step: Callable[..., StepRecord]
) -> None:
    assert peak_sentence(make_step(300, **{"peak": USE, **changes})) == said


def test_groups_of_tensors_have_colour_shape_and_size() -> None:
    group = PeakGroup(
        device=0,
        step=1,
        position=0,
        memory_class=MemoryClass.ACTIVATIONS,
        shape="<b>4×4",
        dtype="float32",
        count=1200,
        bytes=3 * MIB,
    )

    table = peak_groups_table([group])

    assert "#CC79A7" in table
    assert "&lt;b&gt;4×4" in table
    assert "1,200" in table
    assert 'title="3,145,728 B">3.00 MiB' in table
