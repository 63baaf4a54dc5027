"""How `llmkit perplexity` shows its results: llama.cpp's lines for people, and JSON objects for programs.

Owns the formats. Knows nothing of how the numbers came about.
"""

from typing import Any

from llmkit.evaluate.hellaswag import HellaswagScore
from llmkit.evaluate.kl_divergence import MIN_FOR_STATISTICS, KlStatistics, Value
from llmkit.evaluate.multiple_choice import MultipleChoiceScore
from llmkit.evaluate.perplexity import Estimate
from llmkit.evaluate.winogrande import WinograndeScore

KL_HEADER = (
    "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence"
    "              Δp RMS            Same top p\n"
)

_KLD_ROWS = (
    ("Maximum", 1.0), ("99.9%  ", 0.999), ("99.0%  ", 0.99), ("95.0%  ", 0.95), ("90.0%  ", 0.9), ("Median ", 0.5),
    ("10.0%  ", 0.1), (" 5.0%  ", 0.05), (" 1.0%  ", 0.01), (" 0.1%  ", 0.001), ("Minimum", 0.0),
)  # fmt: skip
_P_DIFF_ROWS = (*_KLD_ROWS[:5], ("75.0%  ", 0.75), _KLD_ROWS[5], ("25.0%  ", 0.25), *_KLD_ROWS[6:])


# -- perplexity -------------------------------------------------------------------------------------------------------


def chunk_text(number: int, estimate: Estimate) -> str:
    """The running perplexity after chunk `number` (from 1)."""
    return f"[{number}]{estimate.ppl:.4f},"


def chunk_line(position: int, estimate: Estimate, *, strided: bool) -> str:
    """The other output type: where the chunk begins, perplexity, mean of -log p and its standard error."""
    if strided:
        return f"{position:8d}  {estimate.ppl:.4f}\n"
    return f"{position:8d}  {estimate.ppl:.4f}  {estimate.nll:4f}  {estimate.nll_error:4f}\n"


def final_line(estimate: Estimate, n_done: int, n_chunks: int) -> str:
    """The estimate in one line, which says if it is a partial one."""
    value = f"PPL = {estimate.ppl:.4f} +/- {estimate.ppl_error:.5f}"
    if n_done < n_chunks:
        return f"Partial estimate after {n_done} of {n_chunks} chunks: {value}"
    return f"Final estimate: {value}"


def estimate_json(estimate: Estimate) -> dict[str, Any]:
    """The estimate as numbers."""
    return {
        "ppl": estimate.ppl,
        "ppl_error": estimate.ppl_error,
        "nll": estimate.nll,
        "nll_error": estimate.nll_error,
        "n_scored": estimate.n,
    }


# -- KL divergence ----------------------------------------------------------------------------------------------------


def kl_row(number: int, s: KlStatistics) -> str:
    """The running statistics after chunk `number` (from 1)."""
    return (
        f"{number:4d}    {s.ppl.mean:9.4f} ± {s.ppl.error:9.4f}    {s.ln_ratio.mean:10.5f} ± {s.ln_ratio.error:10.5f}"
        f"    {s.kld.mean:10.5f} ± {s.kld.error:10.5f}"
        f"    {100 * s.p_diff_rms.mean:6.3f} ± {100 * s.p_diff_rms.error:6.3f} %"
        f"    {100 * s.same_top.mean:6.3f} ± {100 * s.same_top.error:6.3f} %\n"
    )


def kl_blocks(s: KlStatistics) -> str:
    """The closing statistics; nothing where there are too few tokens for them."""
    if s.n < MIN_FOR_STATISTICS:
        return ""
    return "\n".join([*_ppl_block(s), "", *_kld_block(s), "", *_p_diff_block(s)]) + "\n"


def _ppl_block(s: KlStatistics) -> list[str]:
    return [
        "====== Perplexity statistics ======",
        f"Mean PPL(Q)                   : {_value(s.ppl)}",
        f"Mean PPL(base)                : {_value(s.ppl_base)}",
        f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * s.correlation:6.2f}%",
        f"Mean ln(PPL(Q)/PPL(base))     : {_value(s.ln_ratio)}",
        f"Mean PPL(Q)/PPL(base)         : {_value(s.ratio)}",
        f"Mean PPL(Q)-PPL(base)         : {_value(s.difference)}",
    ]


def _kld_block(s: KlStatistics) -> list[str]:
    values = s.kld_percentiles([fraction for _, fraction in _KLD_ROWS])
    rows = [f"{name} KLD: {value:10.6f}" for (name, _), value in zip(_KLD_ROWS, values, strict=True)]
    return ["====== KL divergence statistics ======", f"Mean    KLD: {_value(s.kld)}", *rows]


def _p_diff_block(s: KlStatistics) -> list[str]:
    values = s.p_diff_percentiles([fraction for _, fraction in _P_DIFF_ROWS])
    rows = [f"{name} Δp: {100 * value:6.3f}%" for (name, _), value in zip(_P_DIFF_ROWS, values, strict=True)]
    return [
        "====== Token probability statistics ======",
        f"Mean    Δp: {_percent(s.p_diff)}",
        *rows,
        f"RMS Δp    : {_percent(s.p_diff_rms)}",
        f"Same top p: {_percent(s.same_top)}",
    ]


def _value(value: Value) -> str:
    return f"{value.mean:10.6f} ± {value.error:10.6f}"


def _percent(value: Value) -> str:
    return f"{100 * value.mean:6.3f} ± {100 * value.error:5.3f} %"


def kl_json(s: KlStatistics) -> dict[str, Any]:
    """The statistics as numbers: probabilities and shares from 0 to 1, errors beside means."""
    values = {
        "ppl": s.ppl, "ppl_base": s.ppl_base, "ln_ppl_ratio": s.ln_ratio, "ppl_ratio": s.ratio,
        "ppl_difference": s.difference, "kld": s.kld, "p_diff": s.p_diff, "p_diff_rms": s.p_diff_rms,
        "same_top": s.same_top,
    }  # fmt: skip
    out: dict[str, Any] = {name: {"mean": value.mean, "error": value.error} for name, value in values.items()}
    kld, p_diff = ([f for _, f in rows] for rows in (_KLD_ROWS, _P_DIFF_ROWS))
    out["ln_ppl_correlation"] = s.correlation
    out["kld_percentiles"] = dict(zip(map(_name, kld), s.kld_percentiles(kld), strict=True))
    out["p_diff_percentiles"] = dict(zip(map(_name, p_diff), s.p_diff_percentiles(p_diff), strict=True))
    return out | {"n_scored": s.n}


def _name(fraction: float) -> str:
    return f"{100 * fraction:g}"


# -- tasks ------------------------------------------------------------------------------------------------------------

HELLASWAG_HEADER = "task\tacc_norm\t95% confidence interval\n"
MULTIPLE_CHOICE_HEADER = "task\tacc_norm\n"


def hellaswag_line(score: HellaswagScore) -> str:
    """After each task: accuracy so far and its 95% interval, in percent."""
    low, high = score.interval
    return f"{score.n}\t{100 * score.accuracy:3.8f}%\t[{100 * low:3.4f}%, {100 * high:3.4f}%]\n"


def hellaswag_final(score: HellaswagScore) -> str:
    """The result in one line."""
    low, high = score.interval
    return f"Final HellaSwag score({score.n} tasks): {100 * score.accuracy:.4f} [{100 * low:.4f}, {100 * high:.4f}]"


def winogrande_line(score: WinograndeScore) -> str:
    """After each task: accuracy so far, the scores of the choices, the chosen and the right one."""
    first, second = score.scores
    return f"{score.n}\t{100 * score.accuracy:.4f}\t{first:10.6f}  {second:10.6f}  {score.chosen}  {score.answer}\n"


def winogrande_final(score: WinograndeScore) -> str:
    """The result in one line."""
    return f"Final Winogrande score({score.n} tasks): {100 * score.accuracy:.4f} +/- {100 * score.error:.4f}"


def multiple_choice_line(score: MultipleChoiceScore) -> str:
    """After each task: accuracy so far, in percent."""
    return f"{score.n}\t{100 * score.accuracy:.8f}\n"


def multiple_choice_final(score: MultipleChoiceScore) -> str:
    """The result, and what guessing would give."""
    return (
        f"Final result: {100 * score.accuracy:.4f} +/- {100 * score.error:.4f}\n"
        f"Random chance: {100 * score.chance:.4f} +/- {100 * score.chance_error:.4f}"
    )


def hellaswag_json(score: HellaswagScore) -> dict[str, Any]:
    """The score as numbers."""
    return {"n_tasks": score.n, "accuracy": score.accuracy, "interval": list(score.interval)}


def winogrande_json(score: WinograndeScore) -> dict[str, Any]:
    """The score as numbers."""
    return {"n_tasks": score.n, "accuracy": score.accuracy, "error": score.error}


def multiple_choice_json(score: MultipleChoiceScore) -> dict[str, Any]:
    """The score as numbers."""
    return {
        "n_tasks": score.n,
        "accuracy": score.accuracy,
        "error": score.error,
        "chance": score.chance,
        "chance_error": score.chance_error,
    }
