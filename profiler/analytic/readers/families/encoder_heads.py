"""The classes of encoders: what each task adds to a body of :mod:`encoders`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..hf_values import HfConfig
from ..modules import Tied, Tree, layer_norm, linear, norm, weight
from .encoders import (
    albert,
    bert,
    deberta,
    deberta_v2,
    distilbert,
    electra,
    modernbert,
    mpnet,
    roberta,
)
from .family import Body, Family


def transform(c: HfConfig, width: int | None = None) -> Tree:
    """What stands before BERT's decoder over the vocabulary."""
    return {
        "dense": linear(c.hidden, width or c.hidden),
        "LayerNorm": layer_norm(width or c.hidden),
    }


def vocabulary_decoder(c: HfConfig, width: int | None = None) -> Tree:
    """The token embedding again, with a bias that has two names."""
    matrix = Tied((c.vocabulary, width or c.hidden))
    return {
        "weight": matrix if c.ties else weight(*matrix.shape),
        "bias": Tied((c.vocabulary,)) if c.ties else weight(c.vocabulary),
    }


def bert_cls(c: HfConfig, width: int | None = None) -> Tree:
    """BERT's head over the vocabulary; ``width`` is the embedding's where it is narrower."""
    return {
        "bias": weight(c.vocabulary),
        "transform": transform(c, width),
        "decoder": vocabulary_decoder(c, width),
    }


def roberta_lm_head(c: HfConfig) -> Tree:
    """RoBERTa's head over the vocabulary."""
    return {
        "bias": weight(c.vocabulary),
        "dense": linear(c.hidden, c.hidden),
        "layer_norm": layer_norm(c.hidden),
        "decoder": vocabulary_decoder(c),
    }


def albert_predictions(c: HfConfig) -> Tree:
    """ALBERT's head over the vocabulary."""
    width = c.size("embedding_size")
    return {
        "bias": weight(c.vocabulary),
        "LayerNorm": layer_norm(width),
        "dense": linear(c.hidden, width),
        "decoder": vocabulary_decoder(c, width),
    }


def two_step_classifier(c: HfConfig, outputs: int | None = None) -> Tree:
    """A dense layer, then the classes."""
    return {
        "dense": linear(c.hidden, c.hidden),
        "out_proj": linear(c.hidden, c.labels if outputs is None else outputs),
    }


EncoderBody = Callable[[HfConfig, bool], Tree]
"""A body, with or without its pooler."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """One encoder's classes: the body, and which heads look at the pooled first token."""

    prefix: str
    masked: Mapping[str, Body]
    """What the masked language model adds."""
    pooled: bool = True
    """Whether the body has a pooler, and classifiers use it."""
    two_steps: bool = False
    """Whether sequences are classified in two steps, without the pooler."""

    def family(self, body: EncoderBody) -> Family:
        """The classes of the family."""

        def masked(c: HfConfig) -> Tree:
            return {self.prefix: body(c, False), **{n: head(c) for n, head in self.masked.items()}}

        def classified(c: HfConfig) -> Tree:
            if self.two_steps:
                return {self.prefix: body(c, False), "classifier": two_step_classifier(c)}
            return {self.prefix: body(c, self.pooled), "classifier": linear(c.hidden, c.labels)}

        return Family(
            {
                "ForMaskedLM": masked,
                "ForCausalLM": masked,
                "LMHeadModel": masked,
                "Model": lambda c: body(c, self.pooled),
                "ForSequenceClassification": classified,
                "ForTokenClassification": lambda c: {
                    self.prefix: body(c, False),
                    "classifier": linear(c.hidden, c.labels),
                },
                "ForQuestionAnswering": lambda c: {
                    self.prefix: body(c, False),
                    "qa_outputs": linear(c.hidden, c.labels),
                },
                "ForMultipleChoice": lambda c: {
                    self.prefix: body(c, self.pooled),
                    "classifier": linear(c.hidden, 1),
                },
            }
        )


def _with_pretraining(family: Family, body: EncoderBody, prefix: str, name: str) -> Family:
    """Adds the classes that also learn whether two sentences follow each other."""
    return Family(
        {
            **family.classes,
            "ForPreTraining": lambda c: {
                prefix: body(c, True),
                "cls": {name: bert_cls(c), "seq_relationship": linear(c.hidden, 2)},
            },
            "ForNextSentencePrediction": lambda c: {
                prefix: body(c, True),
                "cls": {"seq_relationship": linear(c.hidden, 2)},
            },
        }
    )


def _electra() -> Family:
    def generator(c: HfConfig) -> Tree:
        width = c.size("embedding_size")
        return {
            "electra": electra(c),
            "generator_predictions": {
                "LayerNorm": layer_norm(width),
                "dense": linear(c.hidden, width),
            },
            "generator_lm_head": {
                "weight": Tied((c.vocabulary, width)) if c.ties else weight(c.vocabulary, width),
                "bias": weight(c.vocabulary),
            },
        }

    common = Encoder(prefix="electra", masked={}, pooled=False, two_steps=True).family(electra)
    return Family(
        {
            **common.classes,
            "ForMaskedLM": generator,
            "ForCausalLM": generator,
            "ForMultipleChoice": lambda c: {
                "electra": electra(c),
                "sequence_summary": {"summary": linear(c.hidden, c.hidden)},
                "classifier": linear(c.hidden, 1),
            },
            "ForPreTraining": lambda c: {
                "electra": electra(c),
                "discriminator_predictions": {
                    "dense": linear(c.hidden, c.hidden),
                    "dense_prediction": linear(c.hidden, 1),
                },
            },
        }
    )


def _distilbert() -> Family:
    def masked(c: HfConfig) -> Tree:
        width = c.size("dim")
        return {
            "distilbert": distilbert(c),
            "vocab_transform": linear(width, width),
            "vocab_layer_norm": layer_norm(width),
            "vocab_projector": {
                "weight": Tied((c.vocabulary, width)) if c.ties else weight(c.vocabulary, width),
                "bias": weight(c.vocabulary),
            },
        }

    return Family(
        {
            "ForMaskedLM": masked,
            "Model": distilbert,
            "ForSequenceClassification": lambda c: {
                "distilbert": distilbert(c),
                "pre_classifier": linear(c.size("dim"), c.size("dim")),
                "classifier": linear(c.size("dim"), c.labels),
            },
            "ForTokenClassification": lambda c: {
                "distilbert": distilbert(c),
                "classifier": linear(c.size("dim"), c.labels),
            },
            "ForQuestionAnswering": lambda c: {
                "distilbert": distilbert(c),
                "qa_outputs": linear(c.size("dim"), c.labels),
            },
        }
    )


def _deberta(body: EncoderBody) -> Family:
    def masked(c: HfConfig) -> Tree:
        narrow = c.size("embedding_size", c.hidden)
        return {"deberta": body(c, False), "cls": {"predictions": bert_cls(c, narrow)}}

    def classified(c: HfConfig, outputs: int | None = None) -> Tree:
        return {
            "deberta": body(c, False),
            "pooler": {"dense": linear(c.hidden, c.hidden)},
            "classifier": linear(c.hidden, outputs or c.labels),
        }

    plain = Encoder(prefix="deberta", masked={}, pooled=False).family(body)
    return Family(
        {
            **plain.classes,
            "ForMaskedLM": masked,
            "ForSequenceClassification": classified,
            "ForMultipleChoice": lambda c: classified(c, 1),
        }
    )


def _modernbert() -> Family:
    def head(c: HfConfig) -> Tree:
        scale = norm(c.hidden, c.flag("norm_bias"))
        bias = c.flag("classifier_bias")
        return {"head": {"dense": linear(c.hidden, c.hidden, bias), "norm": scale}}

    def masked(c: HfConfig) -> Tree:
        matrix = (c.vocabulary, c.hidden)
        return {
            "model": modernbert(c),
            **head(c),
            "decoder": {
                "weight": Tied(matrix) if c.ties else weight(*matrix),
                **({"bias": weight(c.vocabulary)} if c.flag("decoder_bias", True) else {}),
            },
        }

    def classified(c: HfConfig) -> Tree:
        return {
            "model": modernbert(c),
            **head(c),
            "classifier": linear(c.hidden, c.labels),
        }

    return Family(
        {
            "ForMaskedLM": masked,
            "Model": modernbert,
            "ForSequenceClassification": classified,
            "ForTokenClassification": classified,
        }
    )


_BERT = Encoder(prefix="bert", masked={"cls": lambda c: {"predictions": bert_cls(c)}})
_ROBERTA = Encoder(prefix="roberta", masked={"lm_head": roberta_lm_head}, two_steps=True)
_MPNET = Encoder(prefix="mpnet", masked={"lm_head": roberta_lm_head}, two_steps=True)
_ALBERT = Encoder(prefix="albert", masked={"predictions": albert_predictions})

FAMILIES: dict[str, Family] = {
    "bert": _with_pretraining(_BERT.family(bert), bert, "bert", "predictions"),
    **{name: _ROBERTA.family(roberta) for name in ("roberta", "xlm-roberta", "camembert")},
    "electra": _electra(),
    "distilbert": _distilbert(),
    "mpnet": _MPNET.family(mpnet),
    "albert": _ALBERT.family(albert),
    "deberta": _deberta(deberta),
    "deberta-v2": _deberta(deberta_v2),
    "modernbert": _modernbert(),
}
