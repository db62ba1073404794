"""Parts that many architectures share: attention, MLPs, experts, latent attention."""

from __future__ import annotations

from .hf_values import HfConfig
from .modules import NOTHING, Buffer, Tree, Weight, linear, norm, rotary


def attention(
    c: HfConfig,
    *,
    names: str = "q_proj k_proj v_proj o_proj",
    bias: bool = False,
    output_bias: bool | None = None,
    head_width: int | None = None,
) -> Tree:
    """Queries, keys, values and output, with grouped key and value heads.

    Args:
        c: Sizes are read from it.
        names: What the four projections are called, in the order of the model.
        bias: Whether queries, keys and values have biases.
        output_bias: Whether the output has one; as the others where not said.
        head_width: Width of a head where it is not the configuration's.
    """
    width = head_width or c.head_width
    q, k, v, o = names.split()
    return {
        q: linear(c.hidden, c.heads * width, bias),
        k: linear(c.hidden, c.kv_heads * width, bias),
        v: linear(c.hidden, c.kv_heads * width, bias),
        o: linear(c.heads * width, c.hidden, bias if output_bias is None else output_bias),
    }


def plain_attention(width: int, names: str, bias: bool = True, inner: int | None = None) -> Tree:
    """Four square projections, as encoders have them; ``inner`` is the width of all heads."""
    inner = inner or width
    *inputs, output = names.split()
    return {
        **{name: linear(width, inner, bias) for name in inputs},
        output: linear(inner, width, bias),
    }


def gated_mlp(hidden: int, inner: int, bias: bool = False) -> Tree:
    """``down(act(gate(x)) · up(x))``."""
    return {
        "gate_proj": linear(hidden, inner, bias),
        "up_proj": linear(hidden, inner, bias),
        "down_proj": linear(inner, hidden, bias),
    }


def mlp(hidden: int, inner: int, names: str = "fc1 fc2", bias: bool = True) -> Tree:
    """``second(act(first(x)))``."""
    first, second = names.split()
    return {first: linear(hidden, inner, bias), second: linear(inner, hidden, bias)}


def experts(count: int, hidden: int, inner: int, gated: bool = True) -> Tree:
    """The matrices of all experts, stacked (transformers 5 keeps them so)."""
    first = "gate_up_proj" if gated else "up_proj"
    return {
        first: Weight((count, (2 if gated else 1) * inner, hidden), "experts"),
        "down_proj": Weight((count, hidden, inner), "experts"),
    }


def router(count: int, hidden: int) -> Tree:
    """What chooses the experts: a matrix that is never quantised."""
    return {"weight": Weight((count, hidden))}


def latent_attention(c: HfConfig, *, bias: bool = False) -> Tree:
    """DeepSeek's multi-head latent attention: queries and keys through low-rank projections."""
    nope, rope = c.size("qk_nope_head_dim"), c.size("qk_rope_head_dim")
    values, rank = c.size("v_head_dim"), c.size("kv_lora_rank")
    queries = c.heads * (nope + rope)
    low = c.maybe("q_lora_rank")
    return {
        **(
            {
                "q_a_proj": linear(c.hidden, low, bias),
                "q_a_layernorm": norm(low),
                "q_b_proj": linear(low, queries, False),
            }
            if low
            else {"q_proj": linear(c.hidden, queries, False)}
        ),
        "kv_a_proj_with_mqa": linear(c.hidden, rank + rope, bias),
        "kv_a_layernorm": norm(rank),
        "kv_b_proj": linear(rank, c.heads * (nope + values), False),
        "o_proj": linear(c.heads * values, c.hidden, bias),
    }


def rotary_share(c: HfConfig, default: float = 1.0) -> float:
    """The part of a head's channels that turns; older files name it in other places."""
    rope = c.mapping("rope_parameters") or c.mapping("rope_scaling")
    inner = next((v for v in rope.values() if isinstance(v, dict)), rope)
    for value in (inner.get("partial_rotary_factor"), c.get("partial_rotary_factor")):
        if value is not None:
            return float(value)
    return c.share("rotary_pct", default)


def rotary_of(c: HfConfig, share: float = 1.0, width: int | None = None) -> Tree:
    """Rotary frequencies of one model."""
    return {"rotary_emb": rotary(int((width or c.head_width) * rotary_share(c, share)))}


def correction(count: int, present: bool = True) -> dict[str, Buffer]:
    """DeepSeek-V3's bias that balances the experts: a buffer beside the router."""
    return {"e_score_correction_bias": Buffer((count,))} if present else {}


def only(present: bool, **parts: Tree) -> Tree:
    """These modules, if there are any."""
    return parts if present else NOTHING
