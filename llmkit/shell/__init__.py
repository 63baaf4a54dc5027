"""What a person meets before a command begins: options that all commands have, where values come from, completion.

Owns the command line in general: llama.cpp's flags, environment variables, the configuration file, signals, the
version. Knows nothing of what a command does; the table of commands is llmkit/cli.py's.
"""
