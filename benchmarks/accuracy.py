"""How true the predictions are: published measurements of other people, predicted row by row.

    python benchmarks/accuracy.py PATH [--json FILE] [--write] [--only WORDS] [--rows]

PATH is a JSON list of rows: a model by its sizes, what was run, what was measured and how. Each row
becomes a scenario, which the analytic predictor answers; a row that it cannot answer is refused
with the reason. Nothing of a row's value enters its prediction. Printed are, for each category and
each source: rows answered and refused, the median error, the error that nine rows in ten stay
under, and how many lie inside the band that the prediction states.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from published import Answer, Quantity, Row
from published_inference import answer_inference
from published_kernels import answer_kernel
from published_models import Unanswered
from published_tables import answer_table
from published_training import answer_training
from vramscope.profiler.analytic.overheads import distributed_band

RESULTS = Path(__file__).parent / "results" / "accuracy.md"
COMMAND = "python benchmarks/accuracy.py PATH --write"
BANDED: frozenset[Quantity] = frozenset({"reserved", "device"})
"""Quantities that the allocator and the driver decide: a band is stated, not a number."""
INFERENCE = ("inference", "inference_serving")


@dataclass(frozen=True, slots=True)
class Scored:
    """A row beside its prediction."""

    row: Row
    measured: float | None
    unit: float
    """What one unit of the last printed digit is worth."""
    answer: Answer | None
    reason: str | None
    said: str = ""
    """What a row without a number says: ``FITS`` or ``OOM``."""

    @property
    def quantity(self) -> Quantity:
        """What was compared."""
        return (self.answer and self.answer.quantity) or self.row.quantity

    @property
    def error(self) -> float | None:
        """Relative error of the prediction, signed."""
        if self.answer is None or not self.measured:
            return None
        return self.answer.predicted / self.measured - 1

    @property
    def within_rounding(self) -> bool:
        """Whether the prediction rounds, or is cut, to the digits that are printed."""
        assert self.answer is not None
        assert self.measured is not None
        step = max(self.unit, 1e-9 * self.measured)
        return abs(self.answer.predicted - self.measured) <= step * 1.0000001

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies in the stated band."""
        if self.answer is None or self.measured is None or self.answer.low is None:
            return None
        return self.answer.low <= self.measured <= (self.answer.high or float("inf"))

    @property
    def half_width(self) -> float | None:
        """Half the band's width as a part of its middle."""
        if self.answer is None or self.answer.low is None or self.answer.high is None:
            return None
        return (self.answer.high - self.answer.low) / (self.answer.high + self.answer.low)

    @property
    def verdict(self) -> bool | None:
        """Whether a row that says what fits is foretold rightly."""
        capacity = self.row.capacity_bytes
        if self.row.quantity != "fits" or self.answer is None or capacity is None:
            return None
        return (self.answer.predicted <= capacity) == (self.said == "FITS")

    @property
    def is_distributed(self) -> bool:
        """Whether several devices share the work."""
        return bool(self.row.n_gpus > 1)


def score(fields: dict[str, Any]) -> Scored:
    """Predict one row and set it beside what was measured."""
    row = Row({k: v for k, v in fields.items() if k not in ("value", "value_bytes")})
    value, number = fields["value"], fields.get("value_bytes")
    measured = number if number is not None else value if isinstance(value, int | float) else None
    unit = _last_digit(value) * (measured / value) if measured and value else 0.0
    try:
        return Scored(row, measured, unit, _with_band(row, answer(row)), None, str(value))
    except Unanswered as refused:
        return Scored(row, measured, unit, None, str(refused))


def answer(row: Row) -> Answer:
    """The prediction for a row, by what it is about.

    Raises:
        Unanswered: With the reason.
    """
    if row.quantity == "table":
        return answer_table(row)
    if row.category in INFERENCE:
        return answer_inference(row)
    if row.category.startswith("train") or row.category == "breakdown":
        return answer_training(row)
    if row.category == "kernel":
        return answer_kernel(row)
    raise Unanswered(f"{row.quantity}: not predicted")


def _with_band(row: Row, found: Answer) -> Answer:
    """A rank's own figure has the band of distributed runs where it has none."""
    if row.n_gpus == 1 or found.low is not None or row.kind != "measured":
        return found
    band = distributed_band(int(found.predicted))
    return replace(found, low=band.low, high=band.high)


def _last_digit(value: float) -> float:
    """What one step of the last printed digit is worth: 0.1 for 35.6, 100 for 1200."""
    text = repr(value).removesuffix(".0")
    if "." in text:
        return float(10.0 ** -len(text.partition(".")[2]))
    return float(10.0 ** (len(text) - len(text.rstrip("0"))))


def main(arguments: Sequence[str] | None = None) -> None:
    """Score a file of rows and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("path", type=Path, help="rows, a JSON list")
    parser.add_argument("--json", type=Path, help="write one record a row to this file")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--only", default="", help="only rows whose id or source has these words")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args(arguments)
    rows = json.loads(options.path.read_text(encoding="utf-8"))
    chosen = [r for r in rows if options.only in r["id"] or options.only in r["source"]]
    began = time.perf_counter()
    scored = [score(fields) for fields in chosen]
    each = (time.perf_counter() - began) / max(1, len(scored))
    text = report(scored, each)
    print(text)
    if options.rows:
        print("\n".join(_row_line(s) for s in scored))
    if options.json:
        records = [_record(s) for s in scored]
        options.json.write_text(json.dumps(records, indent=1), encoding="utf-8")
    if options.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(f"Written by `{COMMAND}`.\n\n{text}\n", encoding="utf-8")


def _record(s: Scored) -> dict[str, Any]:
    answer = s.answer
    return {
        "id": s.row.id,
        "grade": s.row.confidence,
        "category": s.row.category,
        "quantity": s.quantity,
        "measured_bytes": s.measured,
        "predicted_bytes": answer.predicted if answer else None,
        "low_bytes": answer.low if answer else None,
        "high_bytes": answer.high if answer else None,
        "reason": s.reason,
    }


def _row_line(s: Scored) -> str:
    if s.answer is None:
        return f"{s.row.id}: refused, {s.reason}"
    measured = "–" if s.measured is None else f"{s.measured:,.0f}"
    error = "–" if s.error is None else f"{s.error:+.2%}"
    band = "" if s.inside is None else (" in band" if s.inside else " OUTSIDE band")
    return f"{s.row.id} {s.row.confidence} {s.quantity}: {s.answer.predicted:,.0f} / {measured}" + (
        f" {error}{band}"
    )


def report(scored: Sequence[Scored], seconds: float) -> str:
    """The tables as Markdown."""
    answered = sum(s.answer is not None for s in scored)
    return "\n\n".join(
        [
            f"{len(scored)} rows, {answered} answered, {1000 * seconds:.1f} ms a row.",
            "## By target\n\n" + _table(_targets(scored)),
            "## By category\n\n" + _table(_by(scored, lambda s: str(s.row.category))),
            "## By source\n\n" + _table(_by(scored, lambda s: _short(str(s.row.source)))),
            "## Fits or not\n\n" + _verdicts(scored),
            "## Refused\n\n" + _refusals(scored),
        ]
    )


def _short(source: str) -> str:
    return source.split("@")[0] if "@" in source else source[:60]


def _targets(scored: Sequence[Scored]) -> dict[str, list[Scored]]:
    """The groups that have a target."""
    single = [
        s
        for s in scored
        if s.row.kind == "measured" and s.quantity not in BANDED and not s.is_distributed
    ]
    return {
        "analytical tables": [s for s in scored if s.row.kind == "analytical"],
        "allocated, graded A": [s for s in single if s.row.confidence == "A"],
        "allocated, graded B": [s for s in single if s.row.confidence == "B"],
        "reserved, device and distributed": [
            s
            for s in scored
            if s.row.kind == "measured" and (s.quantity in BANDED or s.is_distributed)
        ],
        "fits or not": [s for s in scored if s.row.kind == "constraint"],
    }


def _by(scored: Iterable[Scored], key: Callable[[Scored], str]) -> dict[str, list[Scored]]:
    groups: dict[str, list[Scored]] = {}
    for s in scored:
        groups.setdefault(key(s), []).append(s)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _table(groups: dict[str, list[Scored]]) -> str:
    head = "| | rows | answered | median | 9 in 10 | worst | in rounding | in band | band ± |"
    lines = [head, "|---|" + "---:|" * 8]
    for name, group in groups.items():
        errors = sorted(abs(s.error) for s in group if s.error is not None)
        known = [s for s in group if s.inside is not None]
        widths = sorted(s.half_width for s in known if s.half_width is not None)
        tables = [s for s in group if s.row.kind == "analytical" and s.answer]
        cells = [
            name,
            str(len(group)),
            f"{sum(s.answer is not None for s in group) / len(group):.0%}" if group else "–",
            _percent(statistics.median(errors) if errors else None),
            _percent(nine_in_ten(errors)),
            _percent(errors[-1] if errors else None),
            f"{sum(s.within_rounding for s in tables)} of {len(tables)}" if tables else "–",
            f"{sum(bool(s.inside) for s in known)} of {len(known)}" if known else "–",
            _percent(nine_in_ten(widths)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def nine_in_ten(values: Sequence[float]) -> float | None:
    """The value that nine in ten stay at or under; ``values`` in rising order."""
    return values[min(len(values) - 1, -(-9 * len(values) // 10) - 1)] if values else None


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


def _verdicts(scored: Iterable[Scored]) -> str:
    """How many rows that say what fits are foretold rightly, and which are not."""
    judged = [s for s in scored if s.verdict is not None]
    wrong = ", ".join(s.row.id for s in judged if not s.verdict)
    right = sum(bool(s.verdict) for s in judged)
    return f"{right} of {len(judged)} right" + (f"; wrong: {wrong}" if wrong else "")


def _refusals(scored: Iterable[Scored]) -> str:
    reasons = Counter((str(s.row.category), s.reason) for s in scored if s.reason)
    lines = [f"- {n} × {category}: {reason}" for (category, reason), n in reasons.most_common()]
    return "\n".join(lines) or "none"


if __name__ == "__main__":
    main()
