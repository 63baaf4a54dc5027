"""`llmkit serve`'s HTTP application: routes, bodies and numbers as llama.cpp's server and the OpenAI API have them.

Owns HTTP and JSON. Knows nothing of how tokens are computed: it hands requests to the engine's thread and passes on
what comes back. Needs the extra `serve`; nothing outside `llmkit serve` imports it.
"""
