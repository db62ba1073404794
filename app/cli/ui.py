"""``vramscope ui``: the dashboard on a store."""

from __future__ import annotations

from vramscope.storage.engine import normalise_url, redacted

from ..serve import ADDRESS
from . import options
from .processes import dashboard, stay_until_stopped, wait_until_it_answers
from .stores import check_readable

EXAMPLES = ("vramscope ui", "vramscope ui --db runs.db --port 8600")


def ui(port: options.Port = 8501, db: options.Db = None) -> None:
    """Serve the dashboard on 127.0.0.1, until Ctrl-C.

    A store that is not there yet is fine: the first page says how to record a run.
    """
    url = normalise_url(db)
    check_readable(url)
    served = dashboard(url, port)
    with served:
        wait_until_it_answers(served, port)
        stay_until_stopped(
            served,
            f"Dashboard  http://{ADDRESS}:{port}",
            f"Store      {redacted(url)}",
            "Ctrl-C stops it.",
        )
