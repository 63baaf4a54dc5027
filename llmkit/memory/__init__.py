"""KV memory: blocks, the sequences made of them, and their layout. Sees no model.

`block_pool` has the blocks, `sequence` the tokens of one chain and the cells they lie in, `kv_cache` joins the two.
"""
