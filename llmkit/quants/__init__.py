"""One file per GGML tensor type: its layout in the file, its tile for matmul, packing and dequantising.

`tile` has what they share, `registry` finds a type's file by its GGML id.
"""
