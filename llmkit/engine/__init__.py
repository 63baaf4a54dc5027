"""The engine: contexts that decode tokens, and what turns their logits into text. Knows no HTTP and no terminal."""
