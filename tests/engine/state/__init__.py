"""Tests of llmkit.engine.state."""
