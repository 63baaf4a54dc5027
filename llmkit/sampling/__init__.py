"""The steps from a row of logits to a token, one file each; docs/sampling.md explains them."""
