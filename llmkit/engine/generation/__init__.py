"""From logits to text: one generation, several at once, a conversation, many lines. Knows no requests and no HTTP."""
