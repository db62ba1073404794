"""Instants as they stand in exports: ISO 8601 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(when: datetime) -> str:
    """A timezone-aware instant, such as ``2026-03-01T09:30:00.250000Z``."""
    return when.astimezone(UTC).isoformat().replace("+00:00", "Z")


def iso_of_ns(at_ns: int) -> str:
    """Nanoseconds since 1970, to the nanosecond: as a number JavaScript would lose digits."""
    seconds, rest = divmod(at_ns, 1_000_000_000)
    whole = datetime.fromtimestamp(seconds, UTC).isoformat()
    return f"{whole[:19]}.{rest:09d}Z"
