"""The driver's view, through nvidia-ml-py's own ctypes calls into a small scripted library."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
from torch import nn
from vramscope.profiler import MemoryProfiler, ProfilerConfig
from vramscope.profiler.devices import Sources
from vramscope.profiler.devices.cuda import CudaSource
from vramscope.profiler.devices.nvml import Nvml
from vramscope.profiler.devices.peaks import PeakCounter
from vramscope.profiler.devices.source import DriverReading
from vramscope.storage.reader import RunReader

MIB = 2**20
GIB = 2**30
ME = os.getpid()
SOURCE = Path(__file__).parent / "fake_nvml" / "nvml.c"

# Codes of nvmlReturn_t.
UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION = 1, 3, 4
DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, GPU_IS_LOST, UNKNOWN = 9, 13, 15, 999

MEMORY = ("DeviceGetMemoryInfo", "DeviceGetMemoryInfo_v2")
COMPUTE = "DeviceGetComputeRunningProcesses"
GRAPHICS = "DeviceGetGraphicsRunningProcesses"


def uuid(number: int, card: str = "GPU") -> str:
    """A UUID of which the first digits differ from card to card."""
    return f"{card}-{number}a2b3c4d-0000-1111-2222-{number:012d}"


def gpu(
    number: int = 0,
    *running: str,
    used: int = 40 * GIB,
    total: int = 80 * GIB,
    reserved: int = 512 * MIB,
    mig: bool = False,
) -> list[str]:
    """Script of one card, on bus 0x10 + its number, and of what runs there."""
    bus = f"00000000:{0x10 + number:02X}:00.0"
    return [f"gpu {uuid(number)} {bus} {total} {used} {reserved} {int(mig)}", *running]


def instance(number: int, slot: int, *running: str, used: int = GIB) -> list[str]:
    """Script of a MIG instance of the card before it."""
    return [f"mig {uuid(number, 'MIG')} {slot} {10 * GIB} {used} {16 * MIB}", *running]


def process(pid: int, used: int | None, kind: str = "c") -> str:
    return f"proc {pid} {'na' if used is None else used} {kind}"


def fail(code: int, *functions: str, on: str = "*") -> list[str]:
    return [f"fail {function} {on} {code}" for function in functions]


@dataclass
class Driver:
    """The scripted library, as nvidia-ml-py has loaded it."""

    library: Any
    script: Path
    log: Path

    def says(self, *lines: Sequence[str]) -> None:
        self.script.write_text("\n".join(["driver 575.57.08", *itertools.chain(*lines), ""]))

    def open(self, *, whole_host: bool = True) -> Nvml:
        """NVML, opened, of which the clock always says that a reading is due."""
        nvml = Nvml.open(clock=lambda: 0.0, whole_host=whole_host)
        assert nvml is not None
        return nvml

    def reading(self, name: str | None = None, *, whole_host: bool = True) -> DriverReading:
        nvml = self.open(whole_host=whole_host)
        try:
            device = nvml.handle(name or uuid(0))
            assert device is not None
            return device.read()
        finally:
            nvml.close()

    @property
    def references(self) -> int:
        return int(self.library.fake_nvml_references())

    def calls(self) -> list[tuple[str, str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(function, on) for function, on in (line.split() for line in lines)]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the library, compiled."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the scripted libnvidia-ml.so.1 with")
    built = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O1"]
    subprocess.run([compiler, *flags, "-o", built, SOURCE], check=True)
    return built


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """The scripted driver, in the place of the machine's own for one test."""
    loaded = ctypes.CDLL(str(library))

    def load(name: str) -> ctypes.CDLL:
        assert name == "libnvidia-ml.so.1"
        return loaded

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(pynvml, "CDLL", load)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    scripted = Driver(loaded, tmp_path / "script", tmp_path / "calls")
    monkeypatch.setenv("FAKE_NVML", str(scripted.script))
    monkeypatch.setenv("FAKE_NVML_LOG", str(scripted.log))
    scripted.says()
    yield scripted
    left = scripted.references
    for _ in range(left):
        loaded.nvmlShutdown()
    assert left == 0, "nvmlInit without its nvmlShutdown"


# ---- what a reading says


def test_everything_is_told(driver: Driver) -> None:
    driver.says(gpu(0, process(ME, 30 * GIB), process(1, 8 * GIB), process(2, GIB)))
    assert driver.reading() == DriverReading(
        device_total=80 * GIB,
        device_free=40 * GIB,
        device_used=40 * GIB,
        driver_reserved=512 * MIB,
        process_used=30 * GIB,
        other_processes=9 * GIB,
    )


def test_one_that_computes_and_draws_counts_once(driver: Driver) -> None:
    drawing = (process(1, GIB, "cg"), process(2, 2 * GIB, "g"))
    driver.says(gpu(0, process(ME, 5 * GIB, "cg"), *drawing))
    reading = driver.reading()
    assert (reading.process_used, reading.other_processes) == (5 * GIB, 3 * GIB)


def test_more_processes_than_one_page(driver: Driver) -> None:
    driver.says(gpu(0, process(ME, GIB), *(process(pid, MIB) for pid in range(1, 30))))
    assert driver.reading().other_processes == 29 * MIB


ALONE = process(ME, 30 * GIB)
SHARED = (ALONE, process(1, GIB))


@pytest.mark.parametrize(
    ("script", "process_used", "other_processes"),
    [
        (gpu(0, ALONE), 30 * GIB, 0),
        (gpu(0, process(ME, None)), None, 0),
        (gpu(0, process(ME, None), process(1, GIB)), None, GIB),
        (gpu(0, ALONE, process(1, None), process(2, GIB)), 30 * GIB, None),
        (gpu(0), None, None),
        (gpu(0, process(1, GIB)), None, None),
        (gpu(0, *SHARED) + fail(NO_PERMISSION, f"{COMPUTE}_v3"), None, None),
        (gpu(0, *SHARED) + fail(NOT_SUPPORTED, f"{COMPUTE}_v3"), None, None),
        (gpu(0, *SHARED) + fail(NOT_SUPPORTED, f"{GRAPHICS}_v3"), 30 * GIB, GIB),
        (gpu(0, *SHARED) + fail(NO_PERMISSION, f"{GRAPHICS}_v3"), 30 * GIB, None),
        (
            gpu(0, *SHARED) + fail(FUNCTION_NOT_FOUND, f"{COMPUTE}_v3", f"{GRAPHICS}_v3"),
            30 * GIB,
            GIB,
        ),
        (
            gpu(0, *SHARED) + fail(FUNCTION_NOT_FOUND, f"{COMPUTE}_v3", f"{COMPUTE}_v2"),
            None,
            None,
        ),
    ],
    ids=[
        "alone",
        "ours not available, alone",
        "ours not available, one other",
        "one other not available",
        "nobody listed, though we are here",
        "we are not listed",
        "no permission to list",
        "listing not supported",
        "a card that draws nothing",
        "no permission to list what draws",
        "older driver",
        "driver that cannot list",
    ],
)
def test_whose_the_memory_is(
    driver: Driver, script: list[str], process_used: int | None, other_processes: int | None
) -> None:
    driver.says(script)
    reading = driver.reading()
    assert (reading.process_used, reading.other_processes) == (process_used, other_processes)
    assert reading.device_used == 40 * GIB


@pytest.mark.parametrize(
    "script",
    [
        gpu(0, ALONE) + fail(NOT_SUPPORTED, *MEMORY),
        gpu(0, ALONE) + fail(NO_PERMISSION, *MEMORY),
        gpu(0, ALONE) + fail(UNKNOWN, *MEMORY),
        gpu(0, ALONE, total=0, used=0, reserved=0),
    ],
    ids=["unified memory, not supported", "no permission", "unknown error", "unified memory, 0"],
)
def test_memory_that_is_not_told_is_unknown(driver: Driver, script: list[str]) -> None:
    driver.says(script)
    assert driver.reading() == DriverReading(process_used=30 * GIB, other_processes=0)


def test_an_older_driver_does_not_tell_what_it_reserves(driver: Driver) -> None:
    driver.says(gpu(0, ALONE), fail(FUNCTION_NOT_FOUND, "DeviceGetMemoryInfo_v2"))
    reading = driver.reading()
    assert (reading.device_used, reading.device_free) == (40 * GIB, 40 * GIB)
    assert reading.driver_reserved is None


def test_in_a_container_the_others_may_be_hidden(driver: Driver) -> None:
    driver.says(gpu(0, ALONE))
    reading = driver.reading(whole_host=False)
    assert (reading.process_used, reading.other_processes) == (30 * GIB, None)


def test_in_a_container_our_number_may_be_unknown(driver: Driver) -> None:
    driver.says(gpu(0, process(4_123_456, 30 * GIB)))
    reading = driver.reading(whole_host=False)
    assert (reading.process_used, reading.other_processes) == (None, None)
    assert reading.device_used == 40 * GIB


def test_a_lost_gpu_becomes_unknown_and_may_come_back(driver: Driver) -> None:
    driver.says(gpu(0, ALONE))
    nvml = driver.open()
    device = nvml.handle(uuid(0))
    assert device is not None
    assert device.read().device_used == 40 * GIB
    lost = fail(GPU_IS_LOST, *MEMORY, f"{COMPUTE}_v3", f"{GRAPHICS}_v3")
    driver.says(gpu(0, ALONE), lost)
    assert [device.read() for _ in range(3)] == [DriverReading()] * 3
    driver.says(gpu(0, ALONE))
    assert device.read().device_used == 40 * GIB
    nvml.close()


def test_somebody_elses_shutdown_makes_it_unknown(driver: Driver) -> None:
    driver.says(gpu(0, ALONE))
    nvml = driver.open()
    device = nvml.handle(uuid(0))
    assert device is not None
    driver.library.nvmlShutdown()
    assert device.read() == DriverReading()
    nvml.close()


# ---- opening and closing


@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, NO_PERMISSION, UNKNOWN])
def test_a_driver_that_does_not_start_is_none(driver: Driver, code: int) -> None:
    driver.says(fail(code, "Init"))
    assert Nvml.open() is None
    assert driver.references == 0


def test_no_driver_is_none(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    assert Nvml.open() is None


def test_it_is_shut_down_once_for_each_time_it_was_opened(driver: Driver) -> None:
    first, second = driver.open(), driver.open()
    assert driver.references == 2
    first.close()
    first.close()
    assert driver.references == 1
    second.close()
    assert driver.references == 0
    second.close()


def test_the_drivers_version(driver: Driver) -> None:
    nvml = driver.open()
    assert nvml.driver_version == "575.57.08"
    driver.says(fail(UNKNOWN, "SystemGetDriverVersion"))
    assert nvml.driver_version is None
    nvml.close()


def test_the_version_is_known_once_a_device_was_met(driver: Driver) -> None:
    driver.says(gpu(0))
    sources = Sources()
    assert sources.driver_version is None
    assert driver.calls() == []
    assert sources._driver() is not None
    assert sources.driver_version == "575.57.08"
    sources.close()
    assert sources.driver_version is None


# ---- which card


CARDS = [gpu(n, process(ME, (n + 1) * GIB), used=(n + 1) * 10 * GIB) for n in range(4)]


@pytest.mark.parametrize("form", [uuid(2), uuid(2).removeprefix("GPU-")], ids=["nvml", "torch"])
def test_a_card_is_found_by_its_uuid(driver: Driver, form: str) -> None:
    driver.says(*CARDS)
    assert driver.reading(form).process_used == 3 * GIB


@pytest.mark.parametrize("name", [None, "", "00000000-0000-0000-0000-000000000000"])
def test_a_card_without_a_known_uuid_is_found_on_the_bus(driver: Driver, name: str | None) -> None:
    driver.says(*CARDS)
    nvml = driver.open()
    device = nvml.handle(name, "00000000:11:00.0")
    assert device is not None
    assert device.read().process_used == 2 * GIB
    assert nvml.handle(name, "00000000:77:00.0") is None
    assert nvml.handle(name) is None
    nvml.close()


def test_no_card_is_ever_found_by_index(driver: Driver) -> None:
    driver.says(*CARDS)
    nvml = driver.open()
    for number in range(4):
        nvml.handle(uuid(number))
        nvml.handle(None, f"00000000:{0x10 + number:02X}:00.0")
    nvml.close()
    assert not [function for function, _ in driver.calls() if "Index" in function]


def visible_cards(visible: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """UUIDs of cuda:0, cuda:1 …, as torch makes them out by calls of its own to NVML."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cards = torch.cuda._raw_device_uuid_nvml()
    assert cards
    seen = torch.cuda._parse_visible_devices()
    if seen and isinstance(seen[0], str):
        seen = torch.cuda._transform_uuid_to_ordinals(seen, cards)
    return [cards[int(index)].removeprefix("GPU-") for index in seen]


ORDERS = [order for size in (1, 2, 4) for order in itertools.permutations(range(4), size)]


@pytest.mark.parametrize("name", [str, uuid, lambda n: uuid(n)[:6]], ids=["index", "uuid", "short"])
def test_cuda_i_is_the_right_card_however_they_are_numbered(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, name: Callable[[int], str]
) -> None:
    driver.says(*CARDS)
    nvml = driver.open()
    for order in ORDERS:
        cards = visible_cards(",".join(map(name, order)), monkeypatch)
        used = [
            source(nvml, SimpleNamespace(uuid=card), index=index).driver().device_used
            for index, card in enumerate(cards)
        ]
        assert used == [(number + 1) * 10 * GIB for number in order]
    nvml.close()
    while driver.references:  # torch's own nvmlInit, which it leaves open
        driver.library.nvmlShutdown()


# ---- MIG


CUT = [
    *gpu(0, mig=True),
    *instance(4, 0, process(ME, 3 * GIB), process(1, GIB), used=5 * GIB),
    *instance(5, 3, process(2, 7 * GIB), used=8 * GIB),
    *fail(NO_PERMISSION, *MEMORY, f"{COMPUTE}_v3", on=uuid(0)),
    *fail(NOT_SUPPORTED, f"{GRAPHICS}_v3"),
]


@pytest.mark.parametrize("form", [uuid(4, "MIG"), uuid(4).removeprefix("GPU-")])
def test_an_instance_is_found_by_its_own_uuid(driver: Driver, form: str) -> None:
    driver.says(CUT)
    assert driver.reading(form) == DriverReading(
        device_total=10 * GIB,
        device_free=5 * GIB,
        device_used=5 * GIB,
        driver_reserved=16 * MIB,
        process_used=3 * GIB,
        other_processes=GIB,
    )


@pytest.mark.parametrize(
    "visible",
    [uuid(4, "MIG"), f"{uuid(9, 'MIG')},{uuid(4, 'MIG')}", uuid(4, "MIG")[:7]],
    ids=["whole", "second", "short"],
)
def test_of_a_cut_card_the_visible_instance_is_ours(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    driver.says(CUT)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = driver.open()
    for device in (nvml.handle(uuid(0)), nvml.handle(None, "0:10:00.0")):
        assert device is not None
        assert device.instance_uuid == uuid(4, "MIG")
        assert device.read().device_used == 5 * GIB
    nvml.close()


def test_the_only_instance_is_ours(driver: Driver) -> None:
    driver.says(gpu(0, mig=True), instance(4, 5, process(ME, GIB), used=2 * GIB))
    assert driver.reading(uuid(0)).device_used == 2 * GIB


@pytest.mark.parametrize("visible", ["0", uuid(9, "MIG"), "MIG-"])
def test_which_of_two_instances_is_never_guessed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    driver.says(CUT)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = driver.open()
    assert nvml.handle(uuid(0)) is None
    nvml.close()


def test_an_instance_is_stored_under_its_own_uuid(driver: Driver) -> None:
    driver.says(gpu(0, mig=True), instance(4, 0))
    nvml = driver.open()
    properties = SimpleNamespace(uuid=uuid(0).removeprefix("GPU-"), total_memory=10 * GIB)
    assert source(nvml, properties).describe(0, "node").uuid == uuid(4, "MIG")
    nvml.close()


# ---- the source: torch's figures and the driver's


class Allocator:
    """What ``torch._C`` says of a device that holds some bytes; notes whom it was asked about."""

    def __init__(self, reserved: int = 20 * GIB) -> None:
        self.reserved = reserved
        self.asked: list[int] = []

    def _cuda_memoryStats(self, device: int) -> dict[str, Any]:  # noqa: N802
        self.asked.append(device)
        figures = {"current": self.reserved, "peak": self.reserved}
        return {name: {"all": dict(figures)} for name in ("allocated_bytes", "reserved_bytes")}

    def _cuda_resetPeakMemoryStats(self, device: int) -> None:  # noqa: N802
        self.asked.append(device)


def source(
    nvml: Nvml | None,
    properties: Any = None,
    *,
    allocator: Allocator | None = None,
    index: int = 0,
    initialized: Callable[[], bool] = lambda: True,
) -> CudaSource:
    if properties is None:
        properties = SimpleNamespace(uuid=uuid(0).removeprefix("GPU-"))
    return CudaSource(
        torch.device("cuda", index),
        PeakCounter(allocator or Allocator()),  # type: ignore[arg-type]
        lambda: nvml,
        properties=lambda asked: properties,
        initialized=initialized,
    )


def test_the_books_of_the_card_close(driver: Driver) -> None:
    reserved, context = 20 * GIB, 487 * MIB
    ours = process(ME, reserved + context)
    used = 512 * MIB + reserved + context + 3 * GIB
    driver.says(gpu(0, ours, process(1, 3 * GIB), used=used))
    nvml = driver.open()
    device = source(nvml)
    allocator, reading = device.read(), device.driver()
    assert reading.outside_allocator(allocator.reserved) == context
    assert reading.device_used == (
        (reading.driver_reserved or 0)
        + (reading.other_processes or 0)
        + (reading.outside_allocator(allocator.reserved) or 0)
        + (allocator.reserved or 0)
    )
    nvml.close()


def test_alone_on_a_card_that_tells_no_process_what_is_in_use_is_ours(driver: Driver) -> None:
    driver.says(gpu(0, process(ME, None), used=512 * MIB + 20 * GIB + 487 * MIB))
    nvml = driver.open()
    device = source(nvml)
    reserved = device.read().reserved
    assert device.driver().outside_allocator(reserved) == 487 * MIB
    nvml.close()


@pytest.mark.parametrize(
    "reading",
    [
        DriverReading(),
        DriverReading(device_used=40 * GIB),
        DriverReading(device_used=40 * GIB, other_processes=GIB),
        DriverReading(device_used=40 * GIB, process_used=GIB),
    ],
    ids=["nothing", "others unknown", "others there", "less than the allocator holds"],
)
def test_what_lies_outside_the_allocator_is_never_guessed(reading: DriverReading) -> None:
    assert reading.outside_allocator(20 * GIB) is None
    assert reading.outside_allocator(None) is None


def test_a_process_smaller_than_our_allocator_is_not_us(driver: Driver) -> None:
    driver.says(gpu(0, process(ME, 2 * GIB)))
    nvml = driver.open(whole_host=False)
    device = source(nvml)
    device.read()
    assert device.driver() == DriverReading(
        device_total=80 * GIB,
        device_free=40 * GIB,
        device_used=40 * GIB,
        driver_reserved=512 * MIB,
    )
    nvml.close()


def test_a_card_inside_the_processor_has_the_hosts_memory(driver: Driver) -> None:
    driver.says(gpu(0, process(ME, GIB), total=128 * GIB, used=100 * GIB))
    nvml = driver.open()
    properties = SimpleNamespace(uuid=uuid(0).removeprefix("GPU-"), is_integrated=1)
    device = source(nvml, properties)
    assert device.driver() == DriverReading()
    info = device.describe(0, "node")
    assert (info.unified, info.driver_total_bytes) == (True, None)
    nvml.close()
    assert {on for _, on in driver.calls()} == {"-"}


def test_a_card_of_its_own_says_how_much_it_has_in_all(driver: Driver) -> None:
    driver.says(gpu(0, ALONE))
    nvml = driver.open()
    properties = SimpleNamespace(
        uuid=uuid(0).removeprefix("GPU-"), is_integrated=0, total_memory=79 * GIB
    )
    info = source(nvml, properties).describe(0, "node")
    assert (info.unified, info.total_bytes, info.driver_total_bytes) == (False, 79 * GIB, 80 * GIB)
    nvml.close()
    info = source(None, SimpleNamespace()).describe(0, "node")
    assert (info.unified, info.total_bytes, info.driver_total_bytes) == (None, None, None)


def test_nobody_is_asked_before_cuda_is_initialised(driver: Driver) -> None:
    driver.says(*CARDS)
    allocator, begun, opened = Allocator(), [False], []

    def open_nvml() -> Nvml:
        opened.append(driver.open())
        return opened[0]

    device = CudaSource(
        torch.device("cuda", 2),
        PeakCounter(allocator),  # type: ignore[arg-type]
        open_nvml,
        properties=lambda index: SimpleNamespace(uuid=uuid(index).removeprefix("GPU-")),
        initialized=lambda: begun[0],
    )
    assert device.read().allocated is None
    assert device.driver() == DriverReading()
    assert device.describe(0, "node").uuid is None
    assert (allocator.asked, driver.calls(), opened) == ([], [], [])
    begun[0] = True
    assert device.driver().device_used == 30 * GIB
    assert device.read().reserved == 20 * GIB
    opened[0].close()


def test_a_rank_touches_no_card_but_its_own(
    driver: Driver, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.says(*CARDS)
    nvml, allocator = driver.open(), Allocator()
    asked: list[tuple[str, object]] = []

    def record(name: str) -> Callable[..., Any]:
        def call(*arguments: object, **_: object) -> Any:
            asked.append((name, arguments[0] if arguments else None))
            return SimpleNamespace(uuid=uuid(3).removeprefix("GPU-"), total_memory=80 * GIB)

        return call

    calls = (
        *("get_device_properties", "get_device_name", "current_device", "set_device", "init"),
        *("memory_stats", "memory_stats_as_nested_dict", "memory_allocated", "memory_reserved"),
        *("mem_get_info", "max_memory_allocated", "reset_peak_memory_stats", "synchronize"),
        *("device_count", "empty_cache", "memory_snapshot", "_lazy_init", "stream"),
    )
    for name in calls:
        monkeypatch.setattr(torch.cuda, name, record(name))

    def of_rank(device: torch.device) -> CudaSource:
        return CudaSource(
            torch.device("cuda", 3),
            PeakCounter(allocator),  # type: ignore[arg-type]
            lambda: nvml,
            properties=torch.cuda.get_device_properties,
            initialized=lambda: True,
        )

    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = ProfilerConfig(driver_every_s=0.001, predict=False)
    with MemoryProfiler(model, optimizer, store=store_path, config=config, sources=of_rank):
        for _ in range(3):
            model(torch.ones(1, 8)).sum().backward()
            optimizer.step()
            time.sleep(0.002)
    nvml.close()
    assert asked == [("get_device_properties", 3)]
    assert set(allocator.asked) == {3}
    assert {on for _, on in driver.calls()} == {"-", uuid(3)}
    with RunReader(store_path) as reader:
        run = reader.runs().rows[0].info.id
        (device,) = reader.devices(run)
        assert (device.index, device.uuid) == (3, uuid(3).removeprefix("GPU-"))
        steps = list(reader.iter_steps(run, device.id))  # type: ignore[arg-type]
    assert {step.device_used for step in steps} == {40 * GIB}


# ---- cost


def test_a_slow_driver_is_asked_less_often(driver: Driver) -> None:
    driver.says(gpu(0, ALONE), ["slow DeviceGetMemoryInfo_v2 20000"])
    nvml = Nvml.open(whole_host=True)
    assert nvml is not None
    device = nvml.handle(uuid(0))
    assert device is not None
    readings = {device.read() for _ in range(200)}
    assert [r.device_used for r in readings] == [40 * GIB]
    assert driver.calls().count(("DeviceGetMemoryInfo_v2", uuid(0))) == 1
    nvml.close()


def test_a_reading_is_good_for_200_times_what_it_took(driver: Driver) -> None:
    driver.says(gpu(0, ALONE))
    now = iter([10.0, 10.1, 30.0, 30.2, 30.3]).__next__
    nvml = Nvml.open(clock=now, whole_host=True)
    assert nvml is not None
    device = nvml.handle(uuid(0))
    assert device is not None
    assert device.read().device_used == 40 * GIB
    driver.says(gpu(0, ALONE, used=50 * GIB))
    assert device.read().device_used == 40 * GIB
    assert device.read().device_used == 50 * GIB
    nvml.close()


def test_a_reading_costs_little(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.says(gpu(0, *SHARED))
    monkeypatch.delenv("FAKE_NVML_LOG")
    nvml = driver.open()
    device = nvml.handle(uuid(0))
    assert device is not None
    times = []
    for _ in range(50):
        began = time.perf_counter()
        device.read()
        times.append(time.perf_counter() - began)
    nvml.close()
    assert min(times) < 1e-3
    print(f"{min(times) * 1e6:.0f} µs a reading beside what the driver takes")


def test_importing_the_profiler_loads_no_driver() -> None:
    code = "import sys, vramscope.profiler; print('pynvml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["False"]
