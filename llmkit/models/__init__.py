"""Models: from a GGUF file to a plan. Sees no slot, no scheduler and no terminal.

`config` reads hyper-parameters, `weights` finds and checks tensors, `packed` keeps their tiles, `graph` is what a
family's file builds, `plan` turns a graph into addresses; one file per family.
"""
