"""The types that keys and values are kept in, one file each: how 32 cells of one head lie in memory.

A file has four functions (`jit.cells`), which all see one head of one block: `load_k`, `load_v`, `store_k`, `store_v`.
`registry` finds them; a type's file is imported, and so compiled, when a context asks for it. docs/kernels.md has the
layouts.
"""
