"""Measures of a model's quality over a text or over questions with given answers.

Owns how a text is cut into windows, the statistics, llama.cpp's file of log-probabilities and its task formats. Sits
beside the engine's own modules: knows contexts and logits, but no terminal and no options.
"""
