"""Tests of llmkit.engine.scheduling."""
