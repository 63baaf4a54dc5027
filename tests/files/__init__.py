"""Tests of llmkit.files."""
