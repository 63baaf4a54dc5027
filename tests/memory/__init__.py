"""Tests of llmkit.memory."""
