"""Kernels: addresses in, `out` last, no classes, no allocation, no I/O. `jit` has the only decorators."""
