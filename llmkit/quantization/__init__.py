"""Quantising a model file: which tensor gets which type, and the work itself, a few rows at a time.

Follows llama-quantize of llama.cpp b11434: names, numbers, rules, messages. Knows nothing of how a type's bytes are
made (quants/) and nothing of a terminal.
"""
