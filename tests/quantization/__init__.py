"""Tests of llmkit.quantization."""
