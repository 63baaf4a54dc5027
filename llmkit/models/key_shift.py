"""Builds the graph that turns keys to other positions: for each layer with RoPE, by the layer's own frequencies.

A row is a token whose position changes; the inputs' positions are the differences. What multiplies a model's tables is
in the keys already, so the tables here are plain rotations.
"""

from __future__ import annotations

from llmkit.models.graph import Graph
from llmkit.models.transformer import Transformer
from llmkit.models.values import Value


def build_key_shift(graph: Graph, transformer: Transformer) -> Value:
    """Adds all of it to the graph; a value that stands for the end."""
    config = transformer.config
    tables = transformer.rope_tables(lambda frequencies, n_rot, _scale: graph.rope_table(frequencies, n_rot))
    for layer in range(config.n_layer):
        if config.has_rope[layer] and config.n_rot:
            table = tables[config.is_window_layer(layer)]
            graph.kv_shift(table, layer, interleaved=transformer.interleaved)
    return graph.mark_shifted()
