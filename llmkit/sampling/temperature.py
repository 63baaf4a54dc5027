"""Temperature, fixed or following the entropy of the candidates.

Ackley et al. 1985, "A Learning Algorithm for Boltzmann Machines"; the dynamic one is by kalomaze,
ggml-org/llama.cpp#4972.
"""

import math

import numpy as np

from llmkit.sampling.candidates import LOWEST, Candidates


def temperature(candidates: Candidates, temp: float) -> Candidates:
    """Divides the logits, measured from the best one, by temp; temp <= 0 keeps only the best."""
    if temp <= 0:
        return candidates.the_best()
    distance = candidates.logits - np.float32(candidates.largest)
    if temp != 1:
        with np.errstate(over="ignore"):
            distance /= np.float32(max(temp, float(np.finfo(np.float32).tiny)))
            np.maximum(distance, np.float32(LOWEST), out=distance)
    return candidates.with_logits(distance)


def dynamic_temperature(candidates: Candidates, temp: float, spread: float, exponent: float) -> Candidates:
    """Divides by a temperature from temp - spread (sure of one token) to temp + spread (all equally probable).

    In between it follows (entropy / largest possible entropy)^exponent. spread <= 0 is the fixed temperature.
    """
    if spread <= 0:
        return temperature(candidates, temp)
    if candidates.n == 1:
        return candidates
    low, high = max(0.0, temp - spread), max(0.0, temp) + spread
    return temperature(candidates, low + (high - low) * (entropy(candidates) / math.log(candidates.n)) ** exponent)


def entropy(candidates: Candidates) -> float:
    """Of the candidates' probabilities, in nats; 0 to log(n)."""
    return min(max(float((candidates.probs * candidates.surprise).sum()), 0.0), math.log(candidates.n))
