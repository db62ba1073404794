"""Exports of one run: one file a format. Readers go in, text comes out, nothing is written here."""

from __future__ import annotations

from .html_page import PlotlyMissingError
from .run_csv import csv_export
from .run_html import html_report
from .run_json import json_export, json_schema

__all__ = ["PlotlyMissingError", "csv_export", "html_report", "json_export", "json_schema"]
