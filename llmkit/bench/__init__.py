"""Measuring: how fast a model runs, how fast the machine could run it, and llama-bench's way of saying so.

`cases` are what to measure, `ranges` how a user writes them; `measure` takes the time of one; `machine` knows the
ceilings, `roofline` what a case would need at them; `record` and `formats` are llama-bench's fields and formats.
"""
