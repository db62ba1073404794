"""How true the dry run is: against measured CPU runs, and against published GPU peaks.

    python benchmarks/dryrun.py [PUBLISHED.json] [--only WORDS] [--grades A,B] [--write]

Without a file: the models and loops of combinations.py, each trained for two steps under the
profiler and run dry with CPU semantics; parameters, gradients, optimizer state and buffers must be
equal to the byte, activations within 0.5 %, the peak within 1 %.

With a file of published measurements: every single-GPU row that says what torch's allocator had
allocated and whose model and loop one of the builders of dryrun_published.py knows is run dry with
CUDA semantics. No row's value enters its prediction. Then the 8 B Llama, for its cost.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from combinations import COMBINATIONS, title
from dryrun_combinations import ACTIVATIONS, PEAK, compare
from dryrun_published import Case, Refused, case_of, single_gpu_rows
from measuring import machine
from vramscope.profiler.dryrun.hugging_face import dry_run_config
from vramscope.profiler.dryrun.settings import TrainingSettings

RESULTS = Path(__file__).parent / "results"
MEDIAN, NINE_IN_TEN, SECONDS = 0.005, 0.02, 15.0
"""What is promised for grade A: relative errors, and time for each."""
LLAMA_SECONDS, LLAMA_BYTES = 10.0, 2e9
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class Result:
    """A published row, run dry."""

    case: Case
    predicted_bytes: int
    cpu_s: float
    wall_s: float

    @property
    def error(self) -> float:
        """Relative: above 0 the dry run says more."""
        return (self.predicted_bytes - self.case.measured_bytes) / self.case.measured_bytes


def combinations(words: list[str]) -> tuple[list[str], list[str]]:
    """The table of measured CPU runs, and what was missed."""
    lines = [
        "| model and loop | peak measured | dry run | error | activations | peak in | CPU time |",
        "|---|--:|--:|--:|--:|---|--:|",
    ]
    missed = []
    for combination in COMBINATIONS:
        name = title(combination)
        if any(word not in name for word in words):
            continue
        found = compare(combination)
        measured, dry = found.measured.peak.allocated or 0, found.dry.peak.allocated or 0
        lines.append(
            f"| {name} | {measured:,} B | {dry:,} B | {found.peak_error:+.4%} "
            f"| {found.activations_error:+.4%} | {found.dry.peak_phase} | {found.seconds:.1f} s |"
        )
        print(lines[-1], flush=True)
        missed += [f"- {name}: {fault}" for fault in found.faults()]
    return lines, missed


def published(path: Path, words: list[str], grades: set[str]) -> tuple[list[str], list[str]]:
    """The table of published rows, and what was missed."""
    lines = [
        "| row | grade | | measured | dry run | error | CPU time | wall time |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    results: list[Result] = []
    refused: dict[str, int] = {}
    for row in single_gpu_rows(path):
        if row["confidence"] not in grades or any(word not in row["id"] for word in words):
            continue
        try:
            result = run(case_of(row))
        except Refused as reason:
            key = f"{row['confidence']}: {reason}"
            refused[key] = refused.get(key, 0) + 1
            continue
        results.append(result)
        lines.append(_line(result))
        print(lines[-1], flush=True)
    summary, missed = _summary(results)
    reasons = [f"- {count} of grade {reason}" for reason, count in sorted(refused.items())]
    return [*lines, "", *summary, "", "Not run:", "", *reasons], missed


def run(case: Case) -> Result:
    """Runs a row dry and takes the time."""
    cpu, wall = time.process_time(), time.perf_counter()
    predicted = case.predicted()
    return Result(case, predicted, time.process_time() - cpu, time.perf_counter() - wall)


def _line(result: Result) -> str:
    case = result.case
    return (
        f"| {case.id} | {case.grade} | {case.quantity} | {case.measured_bytes:,} B "
        f"| {result.predicted_bytes:,} B | {result.error:+.3%} | {result.cpu_s:.1f} s "
        f"| {result.wall_s:.1f} s |"
    )


def _summary(results: list[Result]) -> tuple[list[str], list[str]]:
    said, missed = [], []
    for grade in sorted({r.case.grade for r in results}):
        errors = sorted(abs(r.error) for r in results if r.case.grade == grade)
        slowest = max(r.cpu_s for r in results if r.case.grade == grade)
        median = statistics.median(errors)
        ninth = errors[max(0, -(-9 * len(errors) // 10) - 1)]
        said.append(
            f"Grade {grade}: {len(errors)} rows, median error {median:.3%}, nine in ten within "
            f"{ninth:.3%}, worst {errors[-1]:.3%}, at most {slowest:.1f} s of CPU time."
        )
        if grade == "A":
            for name, value, most in (
                ("median", median, MEDIAN),
                ("nine in ten", ninth, NINE_IN_TEN),
            ):
                if value > most:
                    missed.append(f"- {name}: {value:.3%}, promised at most {most:.1%}")
            if slowest > SECONDS:
                missed.append(f"- slowest: {slowest:.1f} s, promised at most {SECONDS:.0f} s")
    return said, missed


def llama() -> tuple[str, list[str]]:
    """What the 8 B Llama costs, at full depth."""
    import transformers.models.llama.modeling_llama  # noqa: F401 (the import is not the dry run's)

    settings = TrainingSettings(weight_dtype="bfloat16", sequence=2048)
    cpu, wall = time.process_time(), time.perf_counter()
    told = dry_run_config(LLAMA, settings)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    missed = []
    if cpu > LLAMA_SECONDS:
        missed.append(f"- Llama 8 B: {cpu:.1f} s, promised at most {LLAMA_SECONDS:.0f} s")
    if held > LLAMA_BYTES:
        missed.append(f"- Llama 8 B: {held / 1e9:.2f} GB of memory, promised 2 GB")
    peak = (told.step.peak.allocated or 0) / 2**30
    return (
        f"Llama 8 B, all 32 layers, bfloat16, 1 × 2048 tokens, AdamW: peak {peak:.2f} GiB in "
        f"{told.step.peak_phase}; {cpu:.1f} s of CPU time ({wall:.1f} s), imports not counted; "
        f"{held / 1e9:.2f} GB of memory in the process.",
        missed,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("published", type=Path, nargs="?", help="a file of published rows")
    parser.add_argument("--only", default="", help="names that have these words")
    parser.add_argument("--grades", default="A", help="grades of published rows, as A,B")
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    words = options.only.split()
    if options.published is None:
        name = "dryrun.md"
        lines, missed = combinations(words)
        note = (
            "Two steps each, the second compared. Promised: parameters, gradients, optimizer state "
            f"and buffers at the step's end equal to the byte, activations within "
            f"{ACTIVATIONS:.1%}, the peak within {PEAK:.0%}."
        )
    else:
        name = "dryrun_published.md"
        lines, missed = published(options.published, words, set(options.grades.split(",")))
        note, more = llama()
        missed += more
    print(note)
    print("\n".join(["", *missed]) if missed else "\nEvery promise is kept.")
    if options.write:
        verdict = "Not kept:\n\n" + "\n".join(missed) if missed else "Every promise is kept."
        text = "\n".join([*lines, "", note, "", verdict, "", f"{machine()}."])
        (RESULTS / name).write_text(text + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
