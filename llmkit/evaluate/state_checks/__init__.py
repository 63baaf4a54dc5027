"""Whether sequences survive what is done to them: the checks of `llmkit save-load-state`."""
