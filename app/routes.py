"""Routes beside the pages: plotly.js from the installed package, and downloads as streams.

A download is streamed from the store, so that a run of a million steps never stands in memory.
"""

from __future__ import annotations

import functools
import gzip
import re
from collections.abc import Callable, Iterator
from importlib import metadata, resources
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from vramscope.app.chart_component import PLOTLY_ROUTE
from vramscope.app.format import plain
from vramscope.storage.errors import RunNotFound, StorageError
from vramscope.storage.reader import RunReader

EXPORT_ROUTE = "/vramscope/export"

_FOREVER = "public, max-age=31536000, immutable"


@functools.lru_cache(maxsize=1)
def _plotly_js() -> tuple[bytes, bytes]:
    """plotly.js plain and compressed, read once."""
    source = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return source, gzip.compress(source, compresslevel=6, mtime=0)


def plotly_js(request: Request) -> Response:
    """The plotly.js of the installed plotly package, compressed and cacheable for good."""
    etag = f'"plotly-{metadata.version("plotly")}"'
    headers = {"ETag": etag, "Cache-Control": _FOREVER, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    plain, compressed = _plotly_js()
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(compressed, media_type="text/javascript", headers=headers)
    return Response(plain, media_type="text/javascript", headers=headers)


def _json(reader: RunReader, run_id: str) -> Iterator[str]:
    from vramscope.app.reports import json_export

    return json_export(reader, run_id)


def _csv(reader: RunReader, run_id: str) -> Iterator[str]:
    from vramscope.app.reports import csv_export

    return csv_export(reader, run_id)


def _html(reader: RunReader, run_id: str) -> Iterator[str]:
    from vramscope.app.reports import html_report

    yield html_report(reader, run_id)


EXPORTS: dict[str, tuple[Callable[[RunReader, str], Iterator[str]], str]] = {
    "html": (_html, "text/html; charset=utf-8"),
    "json": (_json, "application/json"),
    "csv": (_csv, "text/csv; charset=utf-8"),
}


def export(request: Request) -> Response:
    """One run as a file: ``/vramscope/export/<html|json|csv>/<run>``."""
    kind = request.path_params["kind"]
    if kind not in EXPORTS:
        return PlainTextResponse(
            f"No export is called {plain(kind)!r}; there are {', '.join(EXPORTS)}.\n",
            status_code=404,
        )
    make, media_type = EXPORTS[kind]
    try:
        reader = RunReader()
        run = reader.run(request.path_params["run"])
    except RunNotFound as error:
        return PlainTextResponse(f"{error}\n", status_code=404)
    except StorageError as error:
        return PlainTextResponse(f"{error}\n", status_code=503)
    name = download_name(run.name, run.id, kind)
    return StreamingResponse(
        _closing(reader, make(reader, run.id)),
        media_type=media_type,
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "no-store",
        },
    )


def _closing(reader: RunReader, parts: Iterator[str]) -> Iterator[str]:
    with reader:
        yield from parts


def download_name(name: str, run_id: str, kind: str) -> str:
    """A file name of plain letters, digits, dots and dashes that still names the run."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60]
    safe_id = re.sub(r"[^A-Za-z0-9._-]+", "-", run_id)[:40]
    return "-".join(part for part in ("vramscope", slug, safe_id) if part) + f".{kind}"


def export_url(run_id: str, kind: str, base: str = "") -> str:
    """Address of a download, relative to this server."""
    prefix = f"/{base.strip('/')}" if base.strip("/") else ""
    return f"{prefix}{EXPORT_ROUTE}/{kind}/{quote(run_id, safe='')}"


ROUTES: list[Route] = [
    Route(PLOTLY_ROUTE, plotly_js, methods=["GET"]),
    Route(f"{EXPORT_ROUTE}/{{kind}}/{{run}}", export, methods=["GET"]),
]
