"""Options and arguments that several commands share, with one wording."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="Store: a file or a database URL. Left out: $VRAMSCOPE_DB, else vramscope.db here.",
        show_default=False,
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON: sizes in bytes, unknown as null.")]

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's id, the start of it (four characters or more), or its name."
    ),
]

Port = Annotated[
    int, typer.Option("--port", min=1, max=65535, help="Port of the dashboard on 127.0.0.1.")
]

RunA = Annotated[str, typer.Argument(metavar="A", help="The first run, as for `show`.")]
RunB = Annotated[str, typer.Argument(metavar="B", help="The second run.")]

_SETUP = "Training setup"

Precision = Annotated[
    Literal["fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp16"] | None,
    typer.Option(
        "--precision",
        metavar="WORD",
        help="fp32, bf16-mixed or fp16-mixed (autocast), bf16 or fp16 (weights too).",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="TYPE",
        help="Weights: float32, bfloat16, float16, int8, nf4 or fp4.",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
MasterWeights = Annotated[
    bool | None,
    typer.Option(
        "--master-weights",
        help="The optimizer keeps float32 copies of 16-bit weights.",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="sgd, adam, adamw, adam8bit or adamw8bit.",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
Momentum = Annotated[
    float | None,
    typer.Option(
        "--momentum",
        metavar="X",
        min=0,
        help="Momentum of SGD.",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
MicroBatch = Annotated[
    int | None,
    typer.Option(
        "--micro-batch",
        metavar="N",
        min=1,
        help="Samples in one forward pass on one device.",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
Sequence = Annotated[
    int | None,
    typer.Option(
        "--sequence",
        metavar="N",
        min=1,
        help="Tokens in a sample.",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
Accumulation = Annotated[
    int | None,
    typer.Option(
        "--accumulation",
        metavar="N",
        min=1,
        help="Micro-batches in a step.",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
Checkpointing = Annotated[
    Literal["none", "full"] | None,
    typer.Option(
        "--checkpointing",
        metavar="WORD",
        help="none, or full: every block is computed again in backward.",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
Attention = Annotated[
    Literal["sdpa", "eager"] | None,
    typer.Option(
        "--attention",
        metavar="WORD",
        help="sdpa (one operator) or eager (written out).",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
Devices = Annotated[
    int | None,
    typer.Option(
        "--devices",
        metavar="N",
        min=1,
        help="Data-parallel devices; DDP without a ZeRO stage.",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
ZeroStage = Annotated[
    int | None,
    typer.Option(
        "--zero-stage",
        metavar="N",
        min=0,
        max=3,
        help="Stage of DeepSpeed ZeRO.",
        show_default=False,
        rich_help_panel=_SETUP,
    ),
]
Device = Annotated[
    Literal["cuda", "cpu"] | None,
    typer.Option(
        "--device", metavar="WORD", help="cuda or cpu.", show_default=False, rich_help_panel=_SETUP
    ),
]

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Run the model itself without memory (needs transformers) instead of the formulas; "
        "the file is a config.json.",
    ),
]
