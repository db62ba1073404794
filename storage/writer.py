"""The writer in a training process: training appends to a queue, one thread does the rest.

An observer never kills training: after the constructor nothing here raises or waits for the
database, except :meth:`RunWriter.flush` and :meth:`RunWriter.close`, which wait a bounded time.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .engine import normalise_url
from .errors import StorageWarning
from .failures import StoreGone, explain, is_busy, is_outage, sqlite_code
from .ledger import Item, NewDevice, RunChange, RunLedger
from .records import DeviceInfo, Record, RunInfo, RunStatus

CAPACITY = 50_000
"""Records that wait in memory at most; what comes on top is dropped and counted."""

BATCH = 2_000
"""Records in one transaction at most."""

HEARTBEAT_S = 2.0
LONGEST_INTERVAL_S = 5.0
CLOSE_TIMEOUT_S = 10.0
_LONGEST_PAUSE_S = 5.0
_CLOSING_PAUSE_S = 0.05
_GRACE_S = 10.0  # for the last attempt, which may wait for a lock
_PATIENCE_S = 30.0
_CHANGEABLE = frozenset({"name", "settings", "environment", "world_size", "status_message"})

_live: weakref.WeakSet[RunWriter] = weakref.WeakSet()


class _Barrier:
    """Set once everything queued before it is stored."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.stored = False


class RunWriter:
    """Keeps what one process of a run records.

    Several processes (ranks) may write one run: each makes a ``RunWriter`` with the same
    ``run.id``. The run counts as completed when the lowest of its ranks has completed; a
    graver ending of any rank (interrupted, failed, out of memory, in this order) wins.

    In a forked child (a data loader's worker) a writer does nothing.

    Args:
        url: URL or path of the store; it is made where there is none.
        run: the run to enter, or to join when its id is known.
        devices: the process's devices; a record names one by its position here.
        flush_interval_s: how often the thread writes, in seconds: the most that a killed
            process loses.

    Raises:
        StorageError: the store cannot be made, opened or written.
    """

    def __init__(
        self,
        url: str | Path | None,
        run: RunInfo,
        devices: Sequence[DeviceInfo],
        *,
        flush_interval_s: float = 0.5,
    ) -> None:
        if not 0 < flush_interval_s <= LONGEST_INTERVAL_S:
            raise ValueError(
                f"flush_interval_s must be above 0 and at most {LONGEST_INTERVAL_S} seconds (a "
                f"silent run is called stale), not {flush_interval_s}"
            )
        if not 0 < len(run.id) <= 64:
            raise ValueError(f"a run's id has 1 to 64 characters, not {len(run.id)}: {run.id!r}")
        self.url = normalise_url(url)
        self.run_id = run.id
        self.failed: str | None = None
        """Why nothing can be written at the moment; ``None`` while all is well."""
        self._interval_s = flush_interval_s
        self._queue: deque[Item | Callable[[], Iterable[Record]] | _Barrier] = deque()
        self._held: list[Item] = []
        self._barriers: list[_Barrier] = []
        self._positions = len(devices)
        self._lost = self._lost_stored = 0
        self._lock = threading.Lock()
        self._accepting = False
        self._abandoned = False
        self._ended = False
        self._warned = False
        self._gone = False
        self._failing_since: float | None = None
        self._refusals = 0  # how often the disk was full or the like: worth no waiting
        self._ending: tuple[RunStatus, str | None] | None = None
        self._deadline: float | None = None
        self._wake = threading.Event()
        self._ledger = RunLedger(self.url, run.id)
        self._ledger.open(run, devices)
        self._last_beat = time.monotonic()
        self._accepting = True
        self._thread = threading.Thread(target=self._work, name="vramscope-writer", daemon=True)
        self._thread.start()
        _live.add(self)
        self._exit_hook = _exit_hook(self)
        atexit.register(self._exit_hook)

    @property
    def lost_records(self) -> int:
        """Records that could not be kept, so far."""
        return self._lost

    def write(self, record: Record) -> None:
        """Keep a record. Never blocks, never raises; what cannot be kept is counted."""
        if self._accepting and len(self._queue) < CAPACITY:
            self._queue.append(record)
        else:
            self._lose(1)

    def write_later(self, make: Callable[[], Iterable[Record]]) -> None:
        """Keep the records that a function gives, called in the writer's own thread and in order.

        Like :meth:`write` it never blocks and never raises. A function that fails is complained
        of, and what it would have given is lost.
        """
        if self._accepting and len(self._queue) < CAPACITY:
            self._queue.append(make)
        else:
            self._lose(1)

    def add_device(self, device: DeviceInfo) -> int:
        """Add a device that was found later; returns its position for records."""
        if self._abandoned:
            return self._positions
        with self._lock:
            position = self._positions
            self._positions += 1
        if self._accepting:
            self._queue.append(NewDevice(position, device))
        return position

    def update_run(self, **changes: Any) -> None:
        """Change the run's row.

        Args:
            changes: ``name``, ``world_size``, ``status_message``; ``settings`` and
                ``environment`` are merged into what is stored.
        """
        unknown = changes.keys() - _CHANGEABLE
        if unknown:
            raise ValueError(
                f"cannot change {', '.join(sorted(unknown))} of a run; "
                f"only {', '.join(sorted(_CHANGEABLE))}"
            )
        if self._accepting and changes:
            self._queue.append(RunChange(changes))

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all that was given so far is stored.

        Returns:
            Whether it is; ``False`` after ``timeout_s``, when the disk is full or the like, in a
            forked child, and after the end.
        """
        if not self._accepting:
            return False
        barrier = _Barrier()
        refusals, deadline = self._refusals, time.monotonic() + timeout_s
        self._queue.append(barrier)
        self._wake.set()
        while not barrier.reached.wait(max(0.0, min(0.05, deadline - time.monotonic()))):
            if self._refusals > refusals or time.monotonic() >= deadline:
                break
        return barrier.stored

    def close(self, status: RunStatus, message: str | None = None) -> None:
        """Store what is queued, say how the run ended, and end the thread.

        Waits at most some seconds for a database that cannot be written. Closing twice does
        nothing more.

        Args:
            status: how this process ended; not ``RUNNING`` or ``STALE``.
            message: why, for a person.
        """
        if status in (RunStatus.RUNNING, RunStatus.STALE):
            raise ValueError(f"a run does not end as {status.value!r}")
        self._end((status, message))

    def _end(self, ending: tuple[RunStatus, str | None] | None) -> None:
        if self._abandoned:
            return
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self._accepting = False
        atexit.unregister(self._exit_hook)
        self._ending = ending
        self._deadline = time.monotonic() + CLOSE_TIMEOUT_S
        self._wake.set()
        self._thread.join(CLOSE_TIMEOUT_S + _GRACE_S)
        _live.discard(self)

    def _abandon(self) -> None:
        """In a forked child: never touch the parent's database again, not even to close it."""
        self._accepting = False
        self._abandoned = True
        # Freeing SQLite's handle in the child would run its clean-up on the parent's files.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def _lose(self, count: int) -> None:
        if self._abandoned:
            return
        with self._lock:
            self._lost += count

    # From here on: the thread.

    def _work(self) -> None:
        try:
            pause_s = self._interval_s
            while not (self._deadline is not None and self._finish_if_done()):
                if self._deadline is None:
                    self._wake.wait(pause_s)
                self._wake.clear()
                if self._pump():
                    pause_s = self._interval_s
                else:
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    if self._deadline is not None:
                        time.sleep(_CLOSING_PAUSE_S)
        finally:
            self._accepting = False
            self._ledger.dispose()
            self._release(stored=False)

    def _finish_if_done(self) -> bool:
        """Whether the thread may end: all is stored and said, or the time is up."""
        assert self._deadline is not None
        if self._gone:
            return True
        if time.monotonic() > self._deadline:
            self._give_up()
            return True
        if self._queue or self._held:
            return False
        try:
            self._store([])
            if self._ending is not None:
                self._ledger.finish(*self._ending)
            self._ledger.settle()
        except Exception as error:
            self._note_failure(error)
            time.sleep(_CLOSING_PAUSE_S)
            return False
        return True

    def _pump(self) -> bool:
        """Store all that is queued, a batch a transaction; whether that went well."""
        while self._queue or self._held or self._barriers or self._beat_is_due():
            self._take()
            try:
                self._store(self._held)
            except Exception as error:
                if is_outage(error):
                    self._note_failure(error)
                    return False
                self._store_one_by_one(error)
            self._held = []
            self._recovered()
            if self._lost:
                self._complain(
                    f"records come faster than {self._ledger.where} takes them; {self._lost} are "
                    "lost so far, and the run counts them. Record fewer detail steps."
                )
        return True

    def _take(self) -> None:
        while self._queue and len(self._held) < BATCH:
            item = self._queue.popleft()
            if isinstance(item, _Barrier):
                self._barriers.append(item)
                break
            if callable(item):
                self._held.extend(self._made_by(item))
            else:
                self._held.append(item)

    def _made_by(self, make: Callable[[], Iterable[Record]]) -> list[Record]:
        try:
            return list(make())
        except Exception as error:
            self._lose(1)
            self._complain(
                f"a step's records could not be made ({type(error).__name__}: {error}) and are "
                "lost; please report this."
            )
            return []

    def _store(self, items: Sequence[Item]) -> None:
        lost = self._lost
        self._ledger.store(items, lost=lost - self._lost_stored)
        self._lost_stored = lost
        self._last_beat = time.monotonic()

    def _store_one_by_one(self, error: Exception) -> None:
        """A record that no database takes must not keep the others out."""
        refusals = 0
        for item in self._held:
            try:
                self._store([item])
            except Exception as refused:
                error = refused
                refusals += 1
        self._lose(refusals)
        first_line = str(error).splitlines()[0] if str(error) else ""
        self._complain(
            f"{refusals} record(s) were refused by {self._ledger.where} "
            f"({type(error).__name__}: {first_line}) and are lost; please report this."
        )

    def _recovered(self) -> None:
        self._failing_since = self.failed = None
        self._release(stored=True)

    def _release(self, *, stored: bool) -> None:
        for barrier in self._barriers:
            barrier.stored = stored
            barrier.reached.set()
        self._barriers.clear()

    def _beat_is_due(self) -> bool:
        return time.monotonic() - self._last_beat >= HEARTBEAT_S

    def _note_failure(self, error: Exception) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        reason, remedy = explain(error)
        self.failed = f"{reason}. {remedy}"
        if isinstance(error, StoreGone):
            self._gone = True
            self._give_up()
        elif not is_busy(error) or now - self._failing_since > _PATIENCE_S:
            self._complain(
                f"cannot write to {self._ledger.where}: {self.failed} Training goes on; up to "
                f"{CAPACITY:,} records wait in memory, what comes on top is lost and counted."
            )
            self._refusals += sqlite_code(error) is not None

    def _give_up(self) -> None:
        """Nothing more can be stored: count what is left and stop."""
        self._accepting = False
        waiting = [*self._held, *self._queue]
        self._barriers += [item for item in waiting if isinstance(item, _Barrier)]
        self._lose(sum(not isinstance(item, _Barrier) for item in waiting))
        self._held = []
        self._queue.clear()
        self._deadline = self._deadline or time.monotonic()
        self._complain(
            f"cannot write to {self._ledger.where}: {self.failed or 'it takes too long.'} Training "
            f"goes on; {self._lost} records are lost so far, and no more are kept."
        )

    def _complain(self, what: str) -> None:
        """Warn once for a whole run."""
        if self._warned:
            return
        self._warned = True
        with contextlib.suppress(StorageWarning):  # under -W error the thread must go on
            warnings.warn(f"vramscope: {what}", StorageWarning, stacklevel=2)


def _exit_hook(writer: RunWriter) -> Any:
    """For a process that ends without ``close``: store what is queued, leave the status."""
    reference = weakref.ref(writer)

    def at_exit() -> None:
        alive = reference()
        if alive is not None:
            alive._end(None)

    return at_exit


def _abandon_all() -> None:
    for writer in list(_live):
        writer._abandon()


os.register_at_fork(after_in_child=_abandon_all)
