"""Tests of llmkit; the folders mirror the package."""
