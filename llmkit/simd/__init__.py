"""Vectors for Numba kernels: 16 lanes of float32 or int32, 64 lanes of int8, on any instruction set.

Owns how a vector operation becomes LLVM IR. Knows nothing of models, files or arrays: addresses in, values out.
`emitter` has the operations, `x86` and `arm` what they do better, `target` which set Numba compiles for,
`ops` the same operations as functions a Numba kernel can call.
"""
