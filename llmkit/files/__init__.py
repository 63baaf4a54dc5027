"""Bytes on disk to arrays and back: GGUF reading and writing, the user cache, downloads.

Modules here know file formats. They know no model, no kernel and no command, and import only `llmkit.errors`.
"""
