"""What keeping a run costs: the training thread per call, the writer's thread per row.

    python benchmarks/writer.py [--steps N]

Prints one table. The call is timed on the training thread's own CPU clock, between steps of
2 ms as a training loop would make them, and in a tight loop.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from vramscope.storage.engine import normalise_url
from vramscope.storage.ledger import RunLedger
from vramscope.storage.reader import RunReader
from vramscope.storage.records import (
    MEMORY_LINES,
    DeviceInfo,
    MemoryUse,
    Phase,
    RunInfo,
    RunStatus,
    StepRecord,
)
from vramscope.storage.writer import RunWriter

GPU = DeviceInfo(host="bench", kind="cuda", total_bytes=150_000_000_000)


def step_record(step: int) -> StepRecord:
    """A step with every line known, as on CUDA."""
    use = MemoryUse(**dict.fromkeys(MEMORY_LINES, 10**9 + step * 7919 % 10007))
    return StepRecord(
        device=0,
        step=step,
        started_ns=1_790_000_000_000_000_000 + step,
        duration_s=0.05,
        micro_steps=2,
        end=use,
        peak=use,
        peak_phase=Phase.BACKWARD,
        device_used=10**10,
    )


def run_info() -> RunInfo:
    """The run that everything is written to."""
    return RunInfo(id="benchmark", name="benchmark", started_at=datetime.now(UTC))


def call_costs_us(folder: Path, count: int, pause_s: float) -> list[float]:
    """CPU microseconds of the calling thread for each ``write``."""
    records = [step_record(step) for step in range(count)]
    writer = RunWriter(folder / f"calls-{pause_s}.db", run_info(), (GPU,))
    costs = []
    for record in records:
        start = time.thread_time_ns()
        writer.write(record)
        costs.append((time.thread_time_ns() - start) / 1000)
        if pause_s:
            time.sleep(pause_s)
    writer.close(RunStatus.COMPLETED)
    assert writer.lost_records == 0
    return costs


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def write_all(path: Path, count: int) -> tuple[float, float]:
    """Wall and CPU seconds to bring that many ready records to disk, rollups included."""
    records = [step_record(step) for step in range(count)]
    ledger = RunLedger(normalise_url(path), "benchmark")
    ledger.open(run_info(), (GPU,))

    def work() -> None:
        for begin in range(0, count, 2000):
            ledger.store(records[begin : begin + 2000])

    answer = timed(work)
    ledger.settle()
    ledger.dispose()
    return answer


def machine() -> str:
    """The machine in words."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{processor}, {os.cpu_count()} cores, load {load}; Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=40_000, help="rows to write")
    count = parser.parse_args().steps
    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, calls, pause_s in (("tight loop", 20_000, 0.0), ("every 2 ms", 1000, 0.002)):
            costs = sorted(call_costs_us(folder, calls, pause_s))
            rows.append(
                (
                    f"write() on the training thread, {title}",
                    f"p50 {statistics.median(costs):.2f} µs, "
                    f"p99 {costs[int(0.99 * len(costs))]:.2f} µs",
                )
            )
        path = folder / "rows.db"
        wall, cpu = write_all(path, count)
        rows.append(("rows to disk, by the writer's thread", f"{count / wall:,.0f} rows/s"))
        rows.append(("CPU of that thread for a row", f"{cpu / count * 1e6:.1f} µs"))
        rows.append(
            ("on disk for a step, rollups included", f"{path.stat().st_size / count:.0f} B")
        )
        with RunReader(path) as reader:
            (device,) = reader.devices("benchmark")
            assert device.id is not None
            number = device.id
            reader.steps("benchmark", number)
            costs = [timed(lambda: reader.steps("benchmark", number))[1] * 1e3 for _ in range(9)]
            length = len(reader.steps("benchmark", number))
        rows.append(
            (f"reading {length} of {count} steps", f"{statistics.median(costs):.1f} ms of CPU")
        )
    width = max(len(title) for title, _ in rows)
    print(machine())
    for title, value in rows:
        print(f"  {title:<{width}}  {value}")


if __name__ == "__main__":
    main()
