"""Tests of llmkit.engine.generation."""
