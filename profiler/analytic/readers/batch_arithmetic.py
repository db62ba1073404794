"""The three batch sizes of DeepSpeed: any two decide the third."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Batch:
    """What is known of a step's samples."""

    micro: int | None
    """Samples in one forward pass on one device."""
    accumulation: int | None


def solve_batch(
    *, train: int | None, micro: int | None, accumulation: int | None, data_parallel: int
) -> Batch:
    """Fill in what is missing: ``train = micro · accumulation · data-parallel devices``.

    Source: DeepSpeed 0.19 ``runtime/config.py`` ``_set_batch_related_parameters``.

    Raises:
        ValueError: The three do not agree, or what is given does not divide; names all of them.
    """
    if train is None:
        return Batch(micro, accumulation or (1 if micro is not None else None))
    if micro is not None and accumulation is not None:
        _agree(train, micro, accumulation, data_parallel)
        return Batch(micro, accumulation)
    if micro is not None:
        return Batch(micro, _share(train, micro * data_parallel, f"{micro} × {data_parallel}"))
    parts = (accumulation or 1) * data_parallel
    return Batch(_share(train, parts, f"{accumulation or 1} × {data_parallel}"), accumulation or 1)


def _agree(train: int, micro: int, accumulation: int, data_parallel: int) -> None:
    if train != micro * accumulation * data_parallel:
        raise ValueError(
            f"train_batch_size={train}: must be train_micro_batch_size_per_gpu={micro} × "
            f"gradient_accumulation_steps={accumulation} × {data_parallel} data-parallel devices = "
            f"{micro * accumulation * data_parallel}; give the number of devices with --devices"
        )


def _share(train: int, parts: int, words: str) -> int:
    share, rest = divmod(train, parts)
    if rest or not share:
        raise ValueError(
            f"train_batch_size={train}: must be a multiple of {parts} (= {words} data-parallel "
            "devices); give the number of devices with --devices"
        )
    return share
