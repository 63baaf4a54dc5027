"""Commands of two words: `llmkit state save` is the command that the table calls state-save."""

GROUPS = {"state": "Save, load and look at states."}
"""First words of such commands, and what these are about."""


def words(name: str) -> str:
    """How a command is typed: `state save` for state-save."""
    group = next((group for group in GROUPS if name.startswith(f"{group}-")), None)
    return name if group is None else f"{group} {name.removeprefix(f'{group}-')}"
