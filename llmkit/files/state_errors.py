"""Why a state file is refused: one class a reason, so that each can be told from the others by name."""

from __future__ import annotations

from llmkit.errors import LlmkitError


class StateError(LlmkitError):
    """A state file cannot be used; the base of all reasons. Nothing has been changed."""


class NotAStateError(StateError):
    """The path holds something else than a state file, or cannot be read as a file at all."""


class StateVersionError(StateError):
    """The file has a format version that is newer than what this release reads, or none that ever was."""


class StateDamagedError(StateError):
    """A checksum is wrong, or the file contradicts itself."""


class StateTruncatedError(StateDamagedError):
    """The file ends before what its header announces."""


class StateModelError(StateError):
    """The file was saved with another model, or with other metadata laid over it."""


class StateQuantizationError(StateModelError):
    """The file was saved with the same model in another quantisation."""


class StateRopeError(StateModelError):
    """The file's keys are rotated otherwise than this context would: by another base, scaling or set of factors."""


class StateNumericsError(StateError):
    """The file was computed by kernels that give other bits."""


class StateKvTypeError(StateError):
    """The file's keys or values have other types, or are (not) rotated before they are quantised."""


class StateWindowError(StateError):
    """The file's memory is divided otherwise: another window, or --swa-full on one side only."""


class StateDoesNotFitError(StateError):
    """The context, or what is free of it, is smaller than what the file holds."""


class StateSequenceError(StateError):
    """The sequences that were asked for are not those that the file holds."""


def damaged(path: str, what: str) -> StateDamagedError:
    """The file contradicts itself."""
    return StateDamagedError(f"{path}: the state file is damaged: {what}", "save the state again")
