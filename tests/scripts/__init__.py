"""Tests of what the scripts are made of."""
