"""What can be said about a model file without running it: what is in it, whether it runs here, what memory it takes.

Nothing here imports Numba but `cpu`, so that looking at a file is quick.
"""
