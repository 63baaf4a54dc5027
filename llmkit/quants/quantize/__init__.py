"""float32 rows to the bytes of a file: one file a tensor type, compiled when the type is first asked for.

`registry` is what the rest of llmkit calls. The bytes are those of llama.cpp's own quantizers, so every sum is taken in
their order; what is fast here are lanes: 16 blocks, or parts of blocks, are searched side by side.
"""
