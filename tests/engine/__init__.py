"""Tests of llmkit.engine."""
