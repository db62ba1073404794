"""The classes of an architecture: one body, and a head for each task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..hf_values import HfConfig
from ..modules import Tree, embedding, linear, tied

Body = Callable[[HfConfig], Tree]


@dataclass(frozen=True, slots=True)
class Family:
    """What the classes of one ``model_type`` hold, by how their names end.

    The first class is taken where the configuration names none.
    """

    classes: Mapping[str, Body]

    def named(self, architecture: str) -> Body | None:
        """The class whose name ends so; the longest ending wins."""
        endings = [e for e in self.classes if architecture.endswith(e)]
        return self.classes[max(endings, key=len)] if endings else None

    @property
    def usual(self) -> str:
        """How the name of the class ends that is taken where none is named."""
        return next(iter(self.classes))


def language_head(
    c: HfConfig, bias: bool = False, width: int | None = None, ties: bool | None = None
) -> Tree:
    """The head over the vocabulary: the token embedding again where it is tied."""
    matrix = linear(width or c.hidden, c.vocabulary, bias)
    if not (c.ties if ties is None else ties):
        return matrix
    return {**matrix, "weight": tied(embedding(c.vocabulary, width or c.hidden))["weight"]}


def decoder_family(
    body: Body,
    *,
    prefix: str = "model",
    head: Callable[[HfConfig], Tree] | None = None,
    head_name: str = "lm_head",
    head_bias: Callable[[HfConfig], bool] = lambda c: False,
    ending: str = "ForCausalLM",
) -> Family:
    """The usual classes of a decoder."""
    made = head or (lambda c: language_head(c, head_bias(c)))
    return Family(
        {
            ending: lambda c: {prefix: body(c), head_name: made(c)},
            "Model": body,
            "ForSequenceClassification": lambda c: {
                prefix: body(c),
                "score": linear(c.hidden, c.labels, False),
            },
            "ForTokenClassification": lambda c: {
                prefix: body(c),
                "score": linear(c.hidden, c.labels),
            },
            "ForQuestionAnswering": lambda c: {
                "transformer": body(c),
                "qa_outputs": linear(c.hidden, 2),
            },
        }
    )
