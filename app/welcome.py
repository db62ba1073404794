"""What stands on every page before there is a run to show, and when the store cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import streamlit as st
from vramscope.storage.errors import StorageError, StoreNotFound

from . import blocks, data
from .format import md

_HOOK = """from vramscope.profiler import MemoryProfiler

with MemoryProfiler(model, optimizer, run_name="my first run"):
    for batch in loader:  # your loop, unchanged
        loss = model(batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def style() -> None:
    """Put the blocks' style sheet on the page."""
    st.html(blocks.STYLE)


@contextmanager
def store_errors() -> Iterator[None]:
    """Say what is wrong with the store where a part of a page would have stood."""
    try:
        yield
    except StorageError as error:
        st.error(md(str(error), 600))


def has_runs() -> bool:
    """Whether there is a run to show; if not, the page says how to record one or what is wrong."""
    try:
        total = data.reader().runs(limit=1).total
    except StoreNotFound:
        total = 0
    except StorageError as error:
        st.error(md(str(error), 600))
        return False
    if total == 0:
        first_run()
        _look_again()
    return total > 0


@st.fragment(run_every=data.REFRESH_S)
def _look_again() -> None:
    """Draw the page anew as soon as there is a run to show."""
    with suppress(StorageError):
        if data.reader().runs(limit=1).total:
            st.rerun()


def first_run() -> None:
    """How to record a first run, three ways, each to copy."""
    st.subheader("No run recorded yet", anchor=False)
    st.text(f"This page shows {data.store_label()}. A run appears here as soon as it has begun.")
    left, right = st.columns([2, 3], gap="medium")
    with left:
        with st.container(border=True):
            st.markdown("**See it at work.** Train a small GPT, from the clone's folder.")
            st.code("make demo", language="bash")
        with st.container(border=True):
            st.markdown("**Watch a script as it is.** Nothing in it needs to change.")
            st.code("vramscope run train.py", language="bash")
    with right, st.container(border=True, height="stretch"):
        st.markdown("**Put the hook around a loop.** Steps are found on their own.")
        st.code(_HOOK, language="python")
    with st.expander("What the classes of memory mean"):
        st.html(blocks.classes_help())
