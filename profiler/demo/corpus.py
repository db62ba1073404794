"""The text that the demo learns: its own, a few kilobytes, read as bytes."""

from __future__ import annotations

from importlib import resources

import torch

VALIDATION_SHARE = 0.1


class Corpus:
    """A text as tokens, cut into a part to learn from and a part to be tested on.

    Batches are drawn on the CPU from a generator of its own, so that nothing else that draws random
    numbers changes which examples come.
    """

    def __init__(self, text: bytes, *, seed: int) -> None:
        tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        cut = int(len(tokens) * (1 - VALIDATION_SHARE))
        self.training, self.validation = tokens[:cut], tokens[cut:]
        self._generator = torch.Generator().manual_seed(seed)

    @classmethod
    def bundled(cls, *, seed: int) -> Corpus:
        """The text that comes with the package."""
        text = resources.files(__package__).joinpath("corpus.txt").read_bytes()
        return cls(text, seed=seed)

    def batch(self, size: int, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random passages and, for each of their tokens, the one that follows.

        Returns:
            Two tensors ``(size, block_size)`` of token numbers on the CPU.
        """
        last = len(self.training) - block_size - 1
        starts = torch.randint(last, (size,), generator=self._generator).tolist()
        return _passages(self.training, starts, block_size)

    def validation_batch(self, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The passages kept back, as many as there are whole ones, always the same."""
        starts = list(range(0, len(self.validation) - block_size - 1, block_size))
        return _passages(self.validation, starts, block_size)


def _passages(
    tokens: torch.Tensor, starts: list[int], block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.stack([tokens[i : i + block_size] for i in starts])
    targets = torch.stack([tokens[i + 1 : i + 1 + block_size] for i in starts])
    return inputs, targets
