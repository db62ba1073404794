"""A scenario as a short text that fits into an address, and back."""

from __future__ import annotations

import base64
import binascii
import json
import zlib

from vramscope.profiler.analytic import Scenario

LONGEST = 12_000
"""Characters that an address may hold; a scenario that takes more stays in the session."""
_LARGEST = 4 * 2**20


def encode(scenario: Scenario) -> str:
    """The scenario as letters, digits, ``-`` and ``_``."""
    text = json.dumps(scenario.to_mapping(), separators=(",", ":"), ensure_ascii=False)
    packed = zlib.compress(text.encode(), 9)
    return base64.urlsafe_b64encode(packed).decode("ascii").rstrip("=")


def decode(text: str) -> Scenario:
    """The scenario that a text was made from.

    Raises:
        ValueError: It is no such text, or not all of it, or names what does not exist.
    """
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(packed, _LARGEST)
        if not unpacker.eof:
            raise ValueError
        data = json.loads(plain)
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        raise ValueError("the scenario in this address is not whole; ask for it again") from None
    return Scenario.from_mapping(data)
