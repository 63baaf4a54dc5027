"""The commands, one file each, installed as `llmkit.tools`; `llmkit.cli` loads the one that was asked for."""
