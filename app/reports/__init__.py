"""Exports of one run: one file a format. Readers go in, text comes out, nothing is written here."""

from __future__ import annotations

from .run_csv import csv_export
from .run_json import json_export, json_schema

__all__ = ["csv_export", "json_export", "json_schema"]
