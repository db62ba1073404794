"""What a writer keeps, a reader gives back: the same on every backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from vramscope.storage import lookups, schema
from vramscope.storage.engine import normalise_url, writer_engine
from vramscope.storage.errors import AmbiguousRun, RunNotFound, StorageWarning, StoreNotFound
from vramscope.storage.reader import RunReader
from vramscope.storage.records import (
    DeviceInfo,
    Event,
    EventKind,
    MemoryClass,
    MemoryUse,
    ModuleRecord,
    PeakGroup,
    Phase,
    PhaseRecord,
    PredictionMethod,
    PredictionRecord,
    PredictionTerm,
    RunInfo,
    RunStatus,
    StepRecord,
    TimelinePoint,
)
from vramscope.storage.writer import RunWriter

MakeRun = Callable[..., RunInfo]
MakeStep = Callable[..., StepRecord]

GPU = DeviceInfo(
    rank=0,
    host="node1",
    kind="cuda",
    index=1,
    uuid="GPU-8f2c",
    name="NVIDIA H200",
    total_bytes=150_000_000_000,
    driver_total_bytes=150_754_820_096,
    unified=False,
)
FULL_USE = MemoryUse(
    parameters=1,
    gradients=2,
    optimizer_state=3,
    activations=4,
    autocast_cache=5,
    buffers=6,
    communication=7,
    kv_cache=8,
    temporaries=9,
    unattributed=10,
    allocated=55,
    reserved=2**41,
)
FULL_STEP = StepRecord(
    device=0,
    step=7,
    started_ns=1_790_000_000_000_000_000,
    duration_s=0.125,
    micro_steps=4,
    skipped=True,
    detail=True,
    complete=False,
    carried=True,
    end=MemoryUse(parameters=1, allocated=1),
    peak=FULL_USE,
    peak_phase=Phase.BACKWARD,
    peak_module="blocks.0.mlp",
    master_weights=11,
    requested=12,
    device_used=13,
    process_used=14,
    outside_allocator=17,
    other_processes=18,
    driver_reserved=19,
    host_pinned=15,
    paged=16,
)


@contextmanager
def writing(url: str, run: RunInfo, *devices: DeviceInfo) -> Iterator[RunWriter]:
    """A writer that is closed as completed unless the test closed it otherwise."""
    writer = RunWriter(url, run, devices or (GPU,), flush_interval_s=5)
    try:
        yield writer
    finally:
        writer.close(RunStatus.COMPLETED)


def stored(url: str, run: RunInfo, *records: Any) -> RunReader:
    """A reader of a store with one finished run."""
    with writing(url, run) as writer:
        for record in records:
            writer.write(record)
    assert writer.lost_records == 0
    assert writer.failed is None
    return RunReader(url)


def only_device(reader: RunReader, run: RunInfo) -> int:
    (device,) = reader.devices(run.id)
    assert device.id is not None
    return device.id


def moved(record: Any, device: int) -> Any:
    """The record as read: with the store's number of the device."""
    return replace(record, device=device)


def test_a_run_comes_back_as_it_was_entered(ready_url: str, make_run: MakeRun) -> None:
    run = make_run(world_size=4)
    with stored(ready_url, run) as reader:
        found = reader.run(run.id)
    assert (found.id, found.name, found.world_size) == (run.id, run.name, 4)
    assert found.settings == run.settings
    assert found.environment == run.environment
    assert found.started_at == run.started_at
    assert found.started_at.tzinfo is not None
    assert found.status is RunStatus.COMPLETED
    assert found.ended_at is not None
    assert found.lost_records == 0


def test_a_device_comes_back_with_a_number(ready_url: str, make_run: MakeRun) -> None:
    run = make_run()
    with stored(ready_url, run) as reader:
        (device,) = reader.devices(run.id)
    assert device.id is not None
    assert device == moved_device(GPU, device.id)


def moved_device(device: DeviceInfo, number: int) -> DeviceInfo:
    return replace(device, id=number)


def test_devices_are_ordered_by_rank_and_index(ready_url: str, make_run: MakeRun) -> None:
    run = make_run()
    shuffled = [
        DeviceInfo(rank=rank, host="h", kind="cuda", index=index)
        for rank, index in ((1, 1), (0, 1), (1, 0), (0, 0))
    ]
    with writing(ready_url, run, *shuffled), RunReader(ready_url) as reader:
        found = [(device.rank, device.index) for device in reader.devices(run.id)]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_every_field_of_a_step_comes_back(ready_url: str, make_run: MakeRun) -> None:
    run = make_run()
    with stored(ready_url, run, FULL_STEP) as reader:
        device = only_device(reader, run)
        expected = moved(FULL_STEP, device)
        assert reader.step(run.id, device, 7) == expected
        assert reader.last_step(run.id, device) == expected
        assert reader.peak_step(run.id, device) == expected
        assert list(reader.iter_steps(run.id, device)) == [expected]
        found = reader.step(run.id, device, 7)
    assert found is not None
    assert isinstance(found.skipped, bool)
    assert found.complete is False
    assert isinstance(found.peak_phase, Phase)


def test_unknown_stays_unknown(ready_url: str, make_run: MakeRun, make_step: MakeStep) -> None:
    run = make_run()
    bare = make_step(0, None, peak=MemoryUse(), end=MemoryUse())
    with stored(ready_url, run, bare) as reader:
        device = only_device(reader, run)
        assert reader.step(run.id, device, 0) == moved(bare, device)
        table = reader.steps(run.id, device)
        summary = reader.runs().rows[0]
    assert table.columns["peak_allocated"] == [None]
    assert summary.peak_allocated is None


def test_a_step_table_has_every_column(ready_url: str, make_run: MakeRun) -> None:
    run = make_run()
    with stored(ready_url, run, FULL_STEP) as reader:
        table = reader.steps(run.id, only_device(reader, run))
    assert len(table) == 1
    assert table.level == 1
    row = {name: column[0] for name, column in table.columns.items()}
    for name in StepRecord.__slots__:
        if name not in ("device", "end", "peak"):
            assert row.pop(name) == getattr(FULL_STEP, name)
    for prefix, use in (("end", FULL_STEP.end), ("peak", FULL_STEP.peak)):
        for line, value in use.items():
            assert row.pop(f"{prefix}_{line}") == value
    assert row == {}


def test_phases_and_modules_come_back(ready_url: str, make_run: MakeRun) -> None:
    run = make_run()
    phases = [
        PhaseRecord(device=0, step=7, sequence=number, phase=phase, duration_s=0.25, peak=FULL_USE)
        for number, phase in enumerate((Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))
    ]
    modules = [
        ModuleRecord(device=0, step=7, module="", activations=1),
        ModuleRecord(device=0, step=7, module="blocks.0.mlp", dtype="bfloat16", activations=5),
        ModuleRecord(device=0, step=7, module="blocks.0.mlp", dtype="float32", activations=5),
        ModuleRecord(device=0, step=7, module="blocks.0", dtype="float32", activations=9),
    ]
    with stored(ready_url, run, FULL_STEP, *reversed(phases), *modules) as reader:
        device = only_device(reader, run)
        assert reader.phases(run.id, device, 7) == tuple(moved(p, device) for p in phases)
        root, mlp_16, mlp_32, block = (moved(m, device) for m in modules)
        assert reader.modules(run.id, device, 7) == (block, mlp_16, mlp_32, root)
        assert reader.phases(run.id, device, 8) == ()
        assert reader.detail_steps(run.id, device) == (7,)


def instant(step: int, sequence: int, use: MemoryUse = FULL_USE) -> TimelinePoint:
    return TimelinePoint(
        device=0,
        step=step,
        sequence=sequence,
        offset_s=0.125 * sequence,
        phase=Phase.FORWARD,
        use=use,
    )


def group(step: int, position: int, **changes: Any) -> PeakGroup:
    values: dict[str, Any] = {
        "memory_class": MemoryClass.ACTIVATIONS,
        "shape": "4×128×256",
        "dtype": "bfloat16",
        "count": 3,
        "bytes": 2**40 - position,
    }
    return PeakGroup(device=0, step=step, position=position, **{**values, **changes})


def test_a_timeline_and_the_groups_at_the_peak_come_back_in_order(
    ready_url: str, make_run: MakeRun
) -> None:
    run = make_run()
    instants = [instant(7, 0), instant(7, 1, MemoryUse(allocated=3)), instant(7, 2, MemoryUse())]
    groups = [group(7, 0), group(7, 1, shape="", memory_class=MemoryClass.TEMPORARIES)]
    with stored(ready_url, run, FULL_STEP, *reversed(instants), *reversed(groups)) as reader:
        device = only_device(reader, run)
        assert reader.timeline(run.id, device, 7) == tuple(moved(i, device) for i in instants)
        assert reader.peak_groups(run.id, device, 7) == tuple(moved(g, device) for g in groups)
        found = reader.peak_groups(run.id, device, 7)[1]
        assert isinstance(found.memory_class, MemoryClass)
        assert reader.timeline(run.id, device, 8) == reader.peak_groups(run.id, device, 8) == ()
        assert reader.timeline("another", device, 7) == ()
        assert reader.detail_steps(run.id, device) == ()


def test_what_is_too_long_for_a_key_is_cut(ready_url: str, make_run: MakeRun) -> None:
    run = make_run()
    path = "a" * 600 + ".end"
    records = [
        replace(FULL_STEP, peak_module=path),
        ModuleRecord(device=0, step=7, module=path, dtype="d" * 40, activations=1),
        group(7, 0, dtype="d" * 40, shape="1×" * 2000),
    ]
    with stored(ready_url, run, *records) as reader:
        device = only_device(reader, run)
        (module,) = reader.modules(run.id, device, 7)
        step = reader.step(run.id, device, 7)
        (tensors,) = reader.peak_groups(run.id, device, 7)
    assert len(module.module) == 512
    assert module.module.endswith("a.end")
    assert module.dtype == tensors.dtype == "d" * 32
    assert tensors.shape == "1×" * 2000
    assert step is not None
    assert step.peak_module == module.module


def test_detail_steps_are_those_of_phases_or_modules(ready_url: str, make_run: MakeRun) -> None:
    run = make_run()
    records = [
        *(
            PhaseRecord(
                device=0, step=step, sequence=0, phase=Phase.EVAL, duration_s=1, peak=MemoryUse()
            )
            for step in (50, 0, 100)
        ),
        ModuleRecord(device=0, step=75, module="a", activations=1),
        ModuleRecord(device=0, step=50, module="a", activations=1),
    ]
    with stored(ready_url, run, *records) as reader:
        assert reader.detail_steps(run.id, only_device(reader, run)) == (0, 50, 75, 100)


def test_events_come_back_in_the_order_of_their_instants(ready_url: str, make_run: MakeRun) -> None:
    run = make_run()
    late = Event(
        kind=EventKind.OOM,
        at_ns=9,
        message="out of memory\0\ud800",
        device=0,
        step=3,
        phase=Phase.BACKWARD,
        bytes=2**40,
    )
    early = Event(kind=EventKind.NOTE, at_ns=5, message="a note")
    with stored(ready_url, run, late, early) as reader:
        device = only_device(reader, run)
        first, second = reader.events(run.id)
    assert first == early
    assert (second.kind, second.device, second.bytes) == (EventKind.OOM, device, 2**40)
    assert (second.phase, second.step) == (Phase.BACKWARD, 3)
    assert second.message.startswith("out of memory")


def prediction(allocated: int, method: PredictionMethod) -> PredictionRecord:
    return PredictionRecord(
        device=0,
        method=method,
        peak=MemoryUse(parameters=allocated, allocated=allocated),
        peak_phase=Phase.BACKWARD,
        peak_low=allocated - 1,
        peak_high=allocated + 1,
        device_used=99,
        phases={Phase.FORWARD: FULL_USE, Phase.IDLE: MemoryUse(allocated=4)},
        terms=(
            PredictionTerm(
                name="weights",
                memory_class=MemoryClass.PARAMETERS,
                bytes=7,
                formula="7 × 1",
                source="torch",
            ),
            PredictionTerm(name="context", memory_class=None, bytes=3, formula="3", source="NVML"),
        ),
        not_modelled=("NCCL buffers",),
        scenario={"layers": 4, "zero": {"stage": 2}, "lr": 1e-3, "targets": ["q", "v"]},
    )


def test_the_newest_prediction_of_each_method_comes_back(ready_url: str, make_run: MakeRun) -> None:
    run = make_run()
    analytic, dry_run = PredictionMethod.ANALYTIC, PredictionMethod.DRY_RUN
    records = (prediction(50, analytic), prediction(70, dry_run), prediction(60, analytic))
    with stored(ready_url, run, *records) as reader:
        device = only_device(reader, run)
        found = reader.predictions(run.id)
        summary = reader.runs().rows[0]
    assert found == (moved(records[2], device), moved(records[1], device))
    assert summary.predicted_peak == 60


def test_settings_are_merged_and_the_rest_replaced(ready_url: str, make_run: MakeRun) -> None:
    run = make_run(settings={"optimizer": "sgd", "lr": 1})
    with writing(ready_url, run) as writer:
        writer.update_run(settings={"lr": 2, "loss": float("nan")}, name="better name")
        writer.update_run(environment={"torch": "2.13"}, world_size=8)
        assert writer.flush()
        with RunReader(ready_url) as reader:
            found = reader.run(run.id)
    assert found.settings == {"optimizer": "sgd", "lr": 2, "loss": "nan"}
    assert found.environment == {"host": "node1", "torch": "2.13"}
    assert (found.name, found.world_size) == ("better name", 8)


def test_what_a_run_cannot_change_is_refused(ready_url: str, make_run: MakeRun) -> None:
    with (
        writing(ready_url, make_run()) as writer,
        pytest.raises(ValueError, match=r"cannot change id.*only environment, name"),
    ):
        writer.update_run(id="other")


def test_a_device_added_later_gets_its_records(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    run = make_run()
    with writing(ready_url, run) as writer:
        position = writer.add_device(DeviceInfo(host="node1", kind="cpu"))
        writer.write(make_step(0, 5, device=position))
        assert writer.flush()
        with RunReader(ready_url) as reader:
            added = next(d for d in reader.devices(run.id) if d.kind == "cpu")
            assert added.id is not None
            found = reader.last_step(run.id, added.id)
    assert found == make_step(0, 5, device=added.id)


def test_a_step_written_again_replaces_the_first(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    run = make_run()
    first = [make_step(step, 900 if step == 13 else step) for step in range(100)]
    again = [make_step(step, 500 if step == 14 else step) for step in range(10, 40)]
    with stored(ready_url, run, *first) as reader:
        device = only_device(reader, run)
    with stored(ready_url, run, *again) as reader:
        assert reader.step(run.id, device, 13) == make_step(13, 13, device=device)
        assert reader.peak_step(run.id, device) == make_step(14, 500, device=device)
        last = reader.last_step(run.id, device)
        table = reader.steps(run.id, device, max_rows=30)
    assert last is not None
    assert last.step == 99
    assert table.level == 8
    assert table.columns["peak_allocated"][1] == 500
    assert 900 not in table.columns["peak_allocated"]


def test_a_resumed_run_leaves_nothing_of_the_steps_that_it_repeats(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    """Else two timelines would mix, and modules of another dtype would count twice."""
    run = make_run()

    def detail(step: int, instants: int, dtype: str) -> list[Any]:
        return [
            ModuleRecord(device=0, step=step, module="a", dtype=dtype, activations=1),
            make_step(step, detail=True),
            *(instant(step, number) for number in range(instants)),
            *(group(step, number) for number in range(instants)),
            *(
                PhaseRecord(
                    device=0,
                    step=step,
                    sequence=number,
                    phase=Phase.FORWARD,
                    duration_s=1,
                    peak=FULL_USE,
                )
                for number in range(instants)
            ),
        ]

    first = [record for step in (0, 1, 2) for record in detail(step, 3, "float32")]
    stored(ready_url, run, *first).close()
    with writing(ready_url, run) as writer:
        for record in (*detail(1, 2, "bfloat16"), *detail(3, 1, "bfloat16")):
            writer.write(record)
            assert writer.flush()  # a transaction each: only the first may take out what was there
    with RunReader(ready_url) as reader:
        device = only_device(reader, run)
        for step, instants, dtype in ((0, 3, "float32"), (1, 2, "bfloat16"), (2, 3, "float32")):
            assert len(reader.timeline(run.id, device, step)) == instants
            assert len(reader.peak_groups(run.id, device, step)) == instants
            assert len(reader.phases(run.id, device, step)) == instants
            assert [m.dtype for m in reader.modules(run.id, device, step)] == [dtype]
        assert len(reader.timeline(run.id, device, 3)) == 1


def test_a_live_run_is_read_while_it_is_written(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    run = make_run()
    with writing(ready_url, run) as writer, RunReader(ready_url) as reader:
        device = only_device(reader, run)
        tokens = [reader.change_token(run.id)]
        for step in range(3):
            writer.write(make_step(step))
            assert writer.flush()
            last = reader.last_step(run.id, device)
            assert last is not None
            assert last.step == step
            tokens.append(reader.change_token(run.id))
            assert reader.change_token(run.id) == tokens[-1]
        writer.write(Event(kind=EventKind.NOTE, at_ns=1, message="x"))
        assert writer.flush()
        tokens.append(reader.change_token(run.id))
        assert reader.run(run.id).status is RunStatus.RUNNING
    with RunReader(ready_url) as reader:
        tokens.append(reader.change_token(run.id))
    assert len(set(tokens)) == len(tokens)


def test_steps_of_a_span(ready_url: str, make_run: MakeRun, make_step: MakeStep) -> None:
    run = make_run()
    steps = [make_step(step) for step in range(10, 60)]
    with stored(ready_url, run, *steps) as reader:
        device = only_device(reader, run)
        assert reader.steps(run.id, device, first=20, last=23).columns["step"] == [20, 21, 22, 23]
        assert reader.steps(run.id, device, last=11).columns["step"] == [10, 11]
        assert reader.steps(run.id, device, first=58).columns["step"] == [58, 59]
        assert len(reader.steps(run.id, device, first=60)) == 0
        assert len(reader.steps(run.id, device, first=30, last=20)) == 0
        with pytest.raises(ValueError, match="max_rows must be 1 or more, not 0"):
            reader.steps(run.id, device, max_rows=0)


def test_a_device_of_another_run_has_no_steps_here(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    run, other = make_run(), make_run(id="ffff00000000")
    stored(ready_url, other).close()
    with stored(ready_url, run, make_step(0)) as reader:
        device = only_device(reader, run)
        assert len(reader.steps(other.id, device)) == 0
        assert reader.last_step(other.id, device) is None
        assert list(reader.iter_steps(other.id, device)) == []
        assert len(reader.steps(run.id, device)) == 1


def test_many_steps_are_streamed_whole(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    run = make_run()
    with stored(ready_url, run, *(make_step(step) for step in range(4500))) as reader:
        found = [record.step for record in reader.iter_steps(run.id, only_device(reader, run))]
    assert found == list(range(4500))


def test_the_list_of_runs(ready_url: str, make_run: MakeRun, make_step: MakeStep) -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)
    for number in range(5):
        run = make_run(
            id=f"{number:012x}", name=f"Run_{number}", started_at=start + timedelta(hours=number)
        )
        stored(ready_url, run, make_step(0, 10), make_step(1, 10 + number), make_step(2, 3)).close()
    with RunReader(ready_url) as reader:
        page = reader.runs(limit=2, offset=1)
        assert page.total == 5
        assert [row.info.name for row in page.rows] == ["Run_3", "Run_2"]
        newest = page.rows[0]
        assert (newest.devices, newest.steps, newest.peak_allocated) == (1, 2, 13)
        assert newest.capacity == GPU.total_bytes
        assert [row.info.name for row in reader.runs(search="rUN_2").rows] == ["Run_2"]
        assert reader.runs(search="%").total == 0
        assert reader.runs(search="000000000004").total == 1
        assert reader.runs(status=RunStatus.COMPLETED).total == 5
        assert reader.runs(status="failed").rows == ()


def test_a_summary_is_of_the_fullest_device(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    run = make_run()
    large = DeviceInfo(rank=0, host="h", kind="cuda", index=0, total_bytes=1000)
    small = DeviceInfo(rank=1, host="h", kind="cuda", index=1, total_bytes=100)
    with writing(ready_url, run, large, small) as writer:
        writer.write(make_step(5, 500, device=0))
        writer.write(make_step(4, 90, device=1))
        assert writer.flush()
        with RunReader(ready_url) as reader:
            row = reader.runs().rows[0]
    assert (row.devices, row.steps) == (2, 5)
    assert (row.peak_allocated, row.capacity) == (90, 100)


def test_a_run_is_found_by_id_name_or_prefix(ready_url: str, make_run: MakeRun) -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)
    for number, (key, name) in enumerate(
        [("abcd00000001", "llama"), ("abcd00000002", "llama"), ("beef00000003", "gpt-small")]
    ):
        stored(
            ready_url, make_run(id=key, name=name, started_at=start + timedelta(days=number))
        ).close()
    with RunReader(ready_url) as reader:
        assert reader.run("abcd00000001").id == "abcd00000001"
        assert reader.run("llama").id == "abcd00000002"
        assert reader.run("beef").id == "beef00000003"
        with pytest.raises(AmbiguousRun, match=r"'abcd' could be .*abcd00000002"):
            reader.run("abcd")
        for key in ("bee", "be_f", "gpt-smal", ""):
            with pytest.raises(RunNotFound):
                reader.run(key)
        with pytest.raises(RunNotFound, match=r"No run 'gpt-smal'.*Did you mean 'gpt-small'"):
            reader.run("gpt-smal")
        with pytest.raises(RunNotFound):
            reader.change_token("nothing")


def test_a_silent_run_is_stale(
    ready_url: str, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    with writing(ready_url, run), RunReader(ready_url) as reader:
        assert reader.run(run.id).status is RunStatus.RUNNING
        assert reader.runs(status=RunStatus.RUNNING).total == 1
        assert reader.runs(status=RunStatus.STALE).total == 0
        monkeypatch.setattr(lookups, "STALE_AFTER", timedelta(0))
        assert reader.run(run.id).status is RunStatus.STALE
        assert reader.runs(status=RunStatus.RUNNING).total == 0
        assert reader.runs(status=RunStatus.STALE).rows[0].info.status is RunStatus.STALE
    with RunReader(ready_url) as reader:
        assert reader.run(run.id).status is RunStatus.COMPLETED


def test_a_heartbeat_goes_on_without_records(
    ready_url: str, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vramscope.storage.writer.HEARTBEAT_S", 0.01)
    run = make_run()
    writer = RunWriter(ready_url, run, (GPU,), flush_interval_s=0.01)
    with RunReader(ready_url) as reader:
        first = reader.run(run.id).heartbeat_at
        deadline = time.monotonic() + 5
        while reader.run(run.id).heartbeat_at == first:
            assert time.monotonic() < deadline, "no heartbeat"
    writer.close(RunStatus.COMPLETED)


RANKS = [DeviceInfo(rank=rank, host="h", kind="cuda", index=rank) for rank in range(3)]


@pytest.mark.parametrize(
    ("endings", "status", "message"),
    [
        ([(0, "completed")], "completed", None),
        ([(1, "completed")], "running", None),
        ([(1, "completed"), (0, "completed")], "completed", None),
        ([(0, "completed"), (2, "failed")], "failed", "rank 2"),
        ([(2, "failed"), (0, "completed")], "failed", "rank 2"),
        ([(0, "interrupted"), (1, "out_of_memory"), (2, "failed")], "out_of_memory", "rank 1"),
        ([(1, "out_of_memory"), (0, "interrupted")], "out_of_memory", "rank 1"),
    ],
)
def test_the_gravest_ending_of_all_ranks_is_the_runs(
    ready_url: str,
    make_run: MakeRun,
    endings: list[tuple[int, str]],
    status: str,
    message: str | None,
) -> None:
    run = make_run(world_size=3)
    writers = {rank: RunWriter(ready_url, run, (device,)) for rank, device in enumerate(RANKS)}
    for rank, ending in endings:
        text = None if ending == "completed" else f"rank {rank}"
        writers[rank].close(RunStatus(ending), text)
    with RunReader(ready_url) as reader:
        found = reader.run(run.id)
    assert (found.status, found.status_message) == (status, message)
    assert (found.ended_at is None) == (status == "running")
    for writer in writers.values():
        writer.close(RunStatus.COMPLETED)


def test_a_rank_that_joins_leaves_the_run_as_it_is(ready_url: str, make_run: MakeRun) -> None:
    first = RunWriter(ready_url, make_run(), RANKS[:1])
    first.update_run(settings={"seed": 1})
    assert first.flush()
    second = RunWriter(ready_url, make_run(name="other", settings={}), RANKS[1:2])
    with RunReader(ready_url) as reader:
        found = reader.run(make_run().id)
        assert len(reader.devices(found.id)) == 2
    assert found.name == make_run().name
    assert found.settings["seed"] == 1
    first.close(RunStatus.COMPLETED)
    late = RunWriter(ready_url, make_run(), RANKS[2:])
    with RunReader(ready_url) as reader:
        assert reader.run(found.id).status is RunStatus.COMPLETED
    for writer in (second, late):
        writer.close(RunStatus.COMPLETED)


def test_the_first_rank_sets_an_ended_run_going_again(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    run = make_run()
    with writing(ready_url, run) as writer:
        writer.write(make_step(0))
        writer.close(RunStatus.FAILED, "boom")
    with writing(ready_url, run) as writer, RunReader(ready_url) as reader:
        found = reader.run(run.id)
        assert (found.status, found.status_message, found.ended_at) == ("running", None, None)
        assert len(reader.devices(run.id)) == 1
        assert len(reader.steps(run.id, only_device(reader, run))) == 1


def test_a_run_does_not_end_as_running(ready_url: str, make_run: MakeRun) -> None:
    with writing(ready_url, make_run()) as writer:
        for status in (RunStatus.RUNNING, RunStatus.STALE):
            with pytest.raises(ValueError, match="does not end as"):
                writer.close(status)


def test_a_store_without_a_run_is_fine(ready_url: str, make_run: MakeRun) -> None:
    run = make_run()
    stored(ready_url, run).close()
    engine = writer_engine(normalise_url(ready_url))
    with engine.begin() as connection:
        for table in reversed(schema.metadata.sorted_tables):
            connection.execute(table.delete())
    engine.dispose()
    with RunReader(ready_url) as reader:
        page = reader.runs()
        assert (page.total, page.rows) == (0, ())
        assert reader.devices(run.id) == ()
        assert reader.events(run.id) == ()
        assert reader.predictions(run.id) == ()
        with pytest.raises(RunNotFound):
            reader.run(run.id)


def test_nothing_there_yet_says_how_to_record(store_url: str) -> None:
    with pytest.raises(StoreNotFound, match=r"Record a first run with `vramscope demo`"):
        RunReader(store_url)


def test_a_run_deleted_under_its_writer_ends_the_writing(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    run = make_run()
    writer = RunWriter(ready_url, run, (GPU,), flush_interval_s=5)
    engine = writer_engine(normalise_url(ready_url))
    with engine.begin() as connection:
        connection.execute(schema.devices.delete())
        connection.execute(schema.runs.delete())
    engine.dispose()
    writer.write(make_step(0))
    with pytest.warns(StorageWarning, match="cannot write to|refused"):
        writer.close(RunStatus.COMPLETED)
    assert writer.lost_records == 1
    with RunReader(ready_url) as reader:
        assert reader.runs().total == 0


def test_lost_records_are_counted_in_the_run(
    ready_url: str, make_run: MakeRun, make_step: MakeStep
) -> None:
    run = make_run()
    with writing(ready_url, run) as writer:
        for record in (make_step(0, device=5), make_step(1), make_step(2, 2**70)):
            writer.write(record)
        with pytest.warns(StorageWarning, match="2 record.* refused"):
            assert writer.flush()
        assert writer.lost_records == 2
        assert writer.flush()
        with RunReader(ready_url) as reader:
            assert reader.run(run.id).lost_records == 2
            assert len(reader.steps(run.id, only_device(reader, run))) == 1


def test_times_of_another_zone_are_the_same_instant(ready_url: str, make_run: MakeRun) -> None:
    started = datetime(2026, 3, 1, 14, 0, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    run = make_run(started_at=started)
    with stored(ready_url, run) as reader:
        assert reader.run(run.id).started_at == started
