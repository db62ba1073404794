"""Growth: named series of a device's memory, and what is to be said of each."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vramscope.profiler.growth import Growth, GrowthDetector
from vramscope.profiler.growth_events import size
from vramscope.profiler.spikes import PeakWatch
from vramscope.profiler.trends import Line
from vramscope.storage.records import MemoryClass, MemoryUse

KIB, MIB, GIB = 2**10, 2**20, 2**30
G01 = 196_608
Series = Callable[[int], MemoryUse]

STATE = {"parameters": 100 * MIB, "gradients": 100 * MIB, "optimizer_state": 200 * MIB}
ZEROS = dict.fromkeys(("activations", "temporaries", "buffers", "unattributed"), 0)


def books(**lines: int | None) -> MemoryUse:
    """Books that close: what is not named is that of a quiet model of 400 MiB."""
    known = {**STATE, **ZEROS, **lines}
    return MemoryUse(**known, allocated=sum(v for v in known.values() if v is not None))


def watch(
    series: Series,
    steps: int | Iterable[int],
    *,
    capacity: int | None = None,
    peak: Callable[[int], int | None] = lambda _: None,
) -> list[tuple[int, Growth]]:
    """All that was said, each with the step at which it was said."""
    detector = GrowthDetector(capacity)
    numbers = range(1, steps + 1) if isinstance(steps, int) else steps
    return [(step, g) for step in numbers for g in detector.observe(step, series(step), peak(step))]


def kinds(said: list[tuple[int, Growth]]) -> list[str]:
    return [g.kind for _, g in said]


# ---- leaks


@pytest.mark.parametrize(
    ("name", "series", "by", "memory_class", "slope", "first_step"),
    [
        ("summed losses", lambda t: books(activations=t * G01), 10, "activations", G01, 1),
        ("since 12", lambda t: books(activations=max(0, t - 11) * G01), 24, "activations", G01, 12),
        (
            "onset late",
            lambda t: books(activations=max(0, t - 9_999) * G01),
            10_012,
            "activations",
            G01,
            10_000,
        ),
        ("no class", lambda t: books(unattributed=t * G01), 10, None, G01, 1),
        ("every 2nd step", lambda t: books(unattributed=t // 2 * MIB), 24, None, MIB / 2, 2),
        (
            "every 10th step",
            lambda t: books(unattributed=t // 10 * 64 * KIB),
            120,
            None,
            6_553.6,
            10,
        ),
        (
            "under spikes",
            lambda t: books(activations=t * G01 + (t % 25 == 0) * GIB),
            12,
            "activations",
            G01,
            1,
        ),
        (
            "lazy state first",
            lambda t: books(optimizer_state=(t > 1) * 200 * MIB, activations=t * G01),
            10,
            "activations",
            G01,
            1,
        ),
        ("one number a step", lambda t: books(unattributed=t * 512), 900, None, 512, 1),
    ],
)
def test_a_constant_leak_is_told_soon_and_with_its_slope(
    name: str, series: Series, by: int, memory_class: str | None, slope: float, first_step: int
) -> None:
    said = watch(series, by)

    assert kinds(said) == ["leak"], name
    leak = said[0][1]
    assert leak.memory_class == memory_class
    assert leak.slope_bytes == pytest.approx(slope, rel=0.01)
    assert leak.first_step == first_step
    assert leak.step == said[0][0]
    assert leak.full_at_step is None


def test_a_leak_is_told_again_only_when_it_has_grown_tenfold() -> None:
    said = watch(lambda t: books(activations=t * G01), 5_000)

    assert kinds(said) == ["leak"] * 3
    grown = [g.bytes for _, g in said]
    assert all(10 * a <= b < 12 * a for a, b in pairwise(grown))
    assert {g.slope_bytes for _, g in said} == {G01}


def test_the_forecast_is_when_the_peak_meets_the_capacity() -> None:
    capacity = 2 * GIB

    said = watch(
        lambda t: books(activations=t * G01),
        10,
        capacity=capacity,
        peak=lambda t: GIB + t * G01,
    )

    [(_, leak)] = said
    assert leak.full_at_step == pytest.approx((capacity - GIB) / G01, abs=4)
    assert leak.message == (
        "activations grow by 192 KiB a step since step 1 (1.69 MiB so far); "
        "the device will be full at about step 5,460"
    )


def test_a_leak_is_told_again_when_the_device_is_nearly_full() -> None:
    said = watch(lambda t: books(activations=t * 10 * MIB), 200, capacity=2 * GIB)

    assert any(0.88 < (400 * MIB + s * 10 * MIB) / (2 * GIB) < 0.96 for s, _ in said)


@pytest.mark.parametrize(("noise_mib", "within"), [(1, 200), (20, 1_500), (50, 4_000)])
def test_a_slow_leak_under_noise_is_told_later(noise_mib: int, within: int) -> None:
    r = random.Random(noise_mib)

    said = watch(
        lambda t: books(activations=int((300 + 0.3 * t + r.gauss(0, noise_mib)) * MIB)), within
    )

    assert kinds(said)[:1] == ["leak"]
    assert said[0][1].slope_bytes == pytest.approx(0.3 * MIB, rel=0.25)


def test_a_leak_of_uneven_batches_is_told() -> None:
    r = random.Random(3)
    held = 0

    def series(_: int) -> MemoryUse:
        nonlocal held
        held += int(G01 * r.uniform(0.5, 1.5))
        return books(activations=held)

    said = watch(series, 300)

    assert kinds(said) == ["leak"]
    assert said[0][1].slope_bytes == pytest.approx(G01, rel=0.15)


def test_a_leak_is_seen_while_other_classes_come_and_go() -> None:
    r = random.Random(5)

    said = watch(
        lambda t: books(activations=t * G01, temporaries=int(r.uniform(50, 150) * MIB)), 100
    )

    assert [g.memory_class for _, g in said] == ["activations"]


def test_a_leak_whose_class_is_known_at_detail_steps_only_gets_its_name() -> None:
    def series(step: int) -> MemoryUse:
        detail = step if step <= 3 else max(3, step // 50 * 50)
        return books(activations=detail * G01, unattributed=(step - detail) * G01)

    said = watch(series, 900)

    assert [g.memory_class for _, g in said] == [None, "activations"]
    assert [g.slope_bytes for _, g in said] == [G01, G01]


def test_a_leak_is_seen_where_only_detail_steps_are() -> None:
    said = watch(lambda t: books(activations=t * G01), [1, 2, 3, 50, 100, 150, 200])

    assert kinds(said) == ["leak"]
    assert said[0][1].slope_bytes == G01


def test_a_leak_is_seen_in_the_sum_when_nothing_else_is_known() -> None:
    said = watch(lambda t: MemoryUse(allocated=GIB + t * MIB), 12)

    assert kinds(said) == ["leak"]
    assert said[0][1].message.startswith("allocated memory grows by 1 MiB a step")


# ---- growth with an end


def stepwise(step: int, *, every: int, rises: int) -> MemoryUse:
    """10.24 GB, then 15.36, 20.48 …: one more optimizer state at each rise."""
    state = 10_240_000_000 + 5_120_000_000 * min(rises, step // every)
    return books(parameters=0, gradients=0, optimizer_state=state)


@pytest.mark.parametrize("every", [3, 10, 77])
def test_each_rise_of_stepwise_growth_is_a_jump(every: int) -> None:
    said = watch(lambda t: stepwise(t, every=every, rises=4), 3_000)

    assert kinds(said) == ["jump"] * 4
    assert [g.step for _, g in said] == [every * i for i in (1, 2, 3, 4)]
    assert {g.bytes for _, g in said} == {5_120_000_000}
    assert {g.memory_class for _, g in said} == {MemoryClass.OPTIMIZER_STATE}
    assert all(g.slope_bytes is None for _, g in said)
    assert all("stayed" in g.message for _, g in said)


def test_rises_at_one_step_after_another_are_jumps_too() -> None:
    said = watch(lambda t: stepwise(max(0, t - 4), every=1, rises=4), 3_000)

    assert [(g.kind, g.step) for _, g in said] == [("jump", s) for s in (5, 6, 7, 8)]


def test_jumps_under_a_little_noise_are_jumps() -> None:
    r = random.Random(2)

    said = watch(
        lambda t: books(activations=int(GIB * (1 + t // 200) * r.uniform(0.995, 1.0))), 900
    )

    assert kinds(said) == ["jump"] * 4
    assert [g.step for _, g in said] == [200, 400, 600, 800]


def test_a_leak_that_came_to_rest_is_said_to_have() -> None:
    said = watch(lambda t: books(activations=min(t, 300) * MIB), 3_000)

    assert kinds(said) == ["leak", "leak", "jump"]
    assert "stopped growing" in said[-1][1].message
    assert said[-1][1].bytes == 299 * MIB


def test_a_leak_that_fell_back_is_said_to_have_been_none_and_is_not_told_again() -> None:
    said = watch(lambda t: books(activations=(t % 40) * 50 * MIB), 5_000)

    assert kinds(said) == ["leak", "jump"]
    assert "no leak" in said[-1][1].message


def test_a_leak_after_one_that_came_to_rest_is_told() -> None:
    said = watch(lambda t: books(activations=(min(t, 50) + max(0, t - 1_000)) * MIB), 1_020)

    assert kinds(said) == ["leak", "jump", "leak"]
    assert said[-1][1].first_step == 1_001


# ---- nothing to say

QUIET: list[tuple[str, Series]] = [
    ("flat", lambda _: books()),
    ("state made at step 1", lambda t: books(optimizer_state=(t > 1) * 200 * MIB)),
    ("state made at step 2", lambda t: books(optimizer_state=(t > 2) * 200 * MIB)),
    ("first steps skipped", lambda t: books(optimizer_state=(t > 6) * 200 * MIB)),
    ("gradients come and go", lambda t: books(gradients=(t % 2) * 100 * MIB)),
    ("gradients of every fourth", lambda t: books(gradients=(t % 4 == 0) * 100 * MIB)),
    ("cleared every 9 steps", lambda t: books(activations=(t % 9) * 50 * MIB)),
    ("evaluation every 50 steps", lambda t: books(temporaries=(t % 50 == 0) * 300 * MIB)),
    ("down", lambda t: books(activations=max(0, 500 - t) * MIB)),
    (
        "moved to another class",
        lambda t: books(activations=min(t, 300) * MIB, unattributed=(300 - min(t, 300)) * MIB),
    ),
    ("kept 90 of 100 largest", lambda t: books(activations=min(t, 5) * KIB)),
    ("a few bytes a step", lambda t: books(unattributed=t * 4)),
    ("unknown now and then", lambda t: books(activations=None if t % 3 else 50 * MIB)),
    ("unknown throughout", lambda _: MemoryUse()),
    (
        "unknown at first",
        lambda t: books(activations=None if t < 9 else 50 * MIB, unattributed=50 * MIB * (t < 9)),
    ),
]


@pytest.mark.parametrize(("name", "series"), QUIET, ids=[name for name, _ in QUIET])
def test_nothing_is_said_of(name: str, series: Series) -> None:
    assert watch(series, 2_000) == []


def _correlated(r: random.Random, phi: float) -> Callable[[int], float]:
    spread, state = r.uniform(0.01, 0.2), 0.0

    def value(_: int) -> float:
        nonlocal state
        state = phi * state + r.gauss(0, spread) * math.sqrt(1 - phi * phi)
        return max(0.0, 1 + state)

    return value


def _stationary(family: str, r: random.Random) -> Callable[[int], float]:
    if family.startswith("correlated"):
        return _correlated(r, float(family.split()[1]))
    spread, period = r.uniform(0.01, 0.5), r.randint(5, 100)
    levels = [r.uniform(0.5, 1.5) for _ in range(r.randint(2, 6))]
    return {
        "uniform": lambda _: 1 + r.uniform(-spread, spread),
        "normal": lambda _: max(0.0, 1 + r.gauss(0, 0.4 * spread)),
        "long tail": lambda _: math.exp(r.gauss(0, 0.8 * spread)),
        "buckets": lambda _: r.choice(levels),
        "rare": lambda _: 2.0 if r.random() < 0.02 else 1.0,
        "periodic": lambda t: 3.0 if t % period == 0 else 1.0,
        "sawtooth": lambda t: float(t % (2 + period % 8)),
    }[family]


@pytest.mark.parametrize(
    "family",
    ["uniform", "normal", "long tail", "buckets", "rare", "periodic", "sawtooth",
     "correlated 0.5", "correlated 0.9", "correlated 0.99"],
)  # fmt: skip
def test_no_stationary_series_is_alarming(family: str) -> None:
    """Ten families of twenty: 200 series of 2,000 steps, with peaks that vary by ±50 %."""
    r = random.Random(family)
    peaks = [int(3 * GIB * r.uniform(0.5, 1.5)) for _ in range(2_001)]
    state = sum(STATE.values())
    for seed in range(20):
        r = random.Random(seed)
        base, value = r.uniform(1, 2_000) * MIB, _stationary(family, r)
        line = r.choice(("activations", "temporaries", "unattributed"))
        held = [int(base * value(t)) for t in range(2_001)]

        said = watch(
            lambda t, line=line, held=held: MemoryUse(
                **STATE, **{line: held[t]}, allocated=state + held[t]
            ),
            2_000,
            peak=peaks.__getitem__,
        )

        assert said == [], (family, seed)


# ---- spikes


def test_a_spike_is_told_once_it_is_over() -> None:
    said = watch(lambda _: books(), 200, peak=lambda t: 3 * GIB if t == 77 else 2 * GIB)

    [(at, spike)] = said
    assert (at, spike.kind, spike.step, spike.bytes) == (78, "spike", 77, GIB)
    assert spike.message == (
        "the peak of step 77 was 3 GiB, 1 GiB above the usual 2 GiB, and came down again"
    )


@pytest.mark.parametrize(
    ("name", "peak", "spikes"),
    [
        ("a small model on a CPU", lambda t: 4_000_000 if t == 30 else 3_000_000, 1),
        ("over three steps", lambda t: 3 * GIB if t in (30, 31, 32) else 2 * GIB, 1),
        ("a new level", lambda t: 3 * GIB if t > 30 else 2 * GIB, 0),
        ("too low", lambda t: int(2.3 * GIB) if t == 30 else 2 * GIB, 0),
        ("at warm-up", lambda t: 9 * GIB if t < 3 else 2 * GIB, 0),
        ("a slow rise", lambda t: 2 * GIB + t * MIB, 0),
        ("every fourth step", lambda t: (2 + (t % 4 == 0)) * GIB, 0),
        ("unknown", lambda _: None, 0),
    ],
)
def test_which_peaks_are_spikes(name: str, peak: Callable[[int], int | None], spikes: int) -> None:
    assert kinds(watch(lambda _: books(), 300, peak=peak)) == ["spike"] * spikes, name


def test_spikes_that_come_back_are_told_ever_less() -> None:
    said = watch(lambda _: books(), 10_000, peak=lambda t: (2 + (t % 20 == 0)) * GIB)

    assert 2 <= len(said) <= 9


def test_spikes_under_noise_stand_out() -> None:
    r = random.Random(4)
    watched = PeakWatch()

    found = [
        watched.observe(s, int(GIB * (r.uniform(0.9, 1.1) if s != 500 else 2.5)))
        for s in range(1_000)
    ]

    assert [s.step for s in found if s is not None] == [500]


# ---- whatever comes

sizes = st.integers(0, 2**40)
fast = settings(max_examples=40, deadline=None)


@fast
@given(
    slope=st.integers(8 * KIB, GIB),
    onset=st.integers(3, 100),
    held=st.integers(0, 64 * GIB),
    line=st.sampled_from([*MemoryClass]),
)
def test_any_constant_leak(slope: int, onset: int, held: int, line: MemoryClass) -> None:
    quiet = {**STATE, line.value: held}
    worth = min(MIB, (sum(quiet.values()) + held) // 1000)
    steps = onset + 11 + worth // slope

    said = watch(
        lambda t: books(**{**quiet, line.value: held + max(0, t - onset + 1) * slope}), steps
    )

    assert kinds(said) == ["leak"]
    assert said[0][1].slope_bytes == pytest.approx(slope, rel=0.01)
    assert (said[0][1].memory_class, said[0][1].first_step) == (line, onset)


@fast
@given(every=st.integers(1, 25), held=sizes, offset=st.integers(0, 25))
def test_any_leak_of_every_kth_step(every: int, held: int, offset: int) -> None:
    said = watch(
        lambda t: books(unattributed=held + (t + offset) // every * 2 * MIB), 12 * every + 25
    )

    leaks = [g for _, g in said if g.kind == "leak"]
    assert len(leaks) == 1
    assert leaks[0].slope_bytes == pytest.approx(2 * MIB / every, rel=0.01)


@fast
@given(
    floor=sizes,
    bursts=st.lists(st.lists(sizes, max_size=8), min_size=1, max_size=60),
)
def test_what_always_comes_back_within_eight_steps_is_no_leak(
    floor: int, bursts: list[list[int]]
) -> None:
    values = [floor + over for burst in bursts for over in [0, *burst]]

    said = watch(lambda t: books(activations=values[t - 1]), len(values))

    assert "leak" not in kinds(said)


@fast
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.none() | sizes, st.none() | sizes, st.none() | sizes,
            st.none() | sizes,
        ),
        max_size=120,
    )
)  # fmt: skip
def test_nothing_breaks_it(
    rows: list[tuple[int, int | None, int | None, int | None, int | None]],
) -> None:
    detector, step = GrowthDetector(2**36), 0
    for gap, activations, unattributed, allocated, peak in rows:
        step += gap
        use = MemoryUse(activations=activations, unattributed=unattributed, allocated=allocated)
        for growth in detector.observe(step, use, peak):
            assert growth.bytes > 0
            assert growth.first_step <= growth.step <= step
            assert (growth.slope_bytes is not None) == (growth.kind == "leak")


def test_steps_that_do_not_rise_are_ignored() -> None:
    detector = GrowthDetector()

    for step in (1, 2, 3, 3, 2, 1):
        assert detector.observe(step, books(activations=step * GIB)) == ()


# ---- what it costs


def test_a_line_is_bounded_however_long_it_grows() -> None:
    line = Line(0, 0)
    for step in range(1, 50_000):
        line.change(step, step * 100)
        if step % 8 == 0:
            line.close_block(judge=False)
            line.open_block(step)

    assert len(line._values) == len(line._firsts) <= 256
    assert sum(len(b) for b in line.ladder._blocks) <= 16 * 16
    assert line.rise().slope == 100


def test_a_step_costs_microseconds() -> None:
    """A generous bound, for a busy machine; the figures stand in docs/measuring.md."""
    uses = [books(activations=t * G01) for t in range(2_000)]
    best = math.inf
    for _ in range(5):
        detector = GrowthDetector(2**36)
        began = time.process_time()
        for step, use in enumerate(uses):
            detector.observe(step, use, GIB + step * G01)
        best = min(best, (time.process_time() - began) / len(uses))

    assert best < 30e-6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5 B"),
        (512, "512 B"),
        (196_608, "192 KiB"),
        (3.75 * MIB, "3.75 MiB"),
        (1023 * MIB, "0.999 GiB"),
        (5 * 2**40, "5 TiB"),
    ],
)
def test_sizes_have_three_digits_that_count(value: float, text: str) -> None:
    assert size(value) == text
