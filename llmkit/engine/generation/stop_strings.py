"""Ending a text where a given string appears in it, however the text was cut into pieces.

Owns the search and the text that is held back because a stop string may begin in it. Knows nothing of tokens. The
result does not depend on the pieces: the string that is complete first counts, of those complete at once the longest.
"""

from collections import deque
from collections.abc import Sequence

from llmkit.errors import UsageError


class _State:
    """A node of Aho and Corasick's automaton (1975): the longest end of the text that begins some stop string."""

    __slots__ = ("depth", "following", "shorter", "stop")

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self.following: dict[str, _State] = {}
        self.shorter: _State | None = None
        self.stop: str | None = None


class StopStrings:
    """Takes a text piece by piece and gives back what can be shown: no character twice, none of it later than needed.

    stops: strings that end the text and are not part of it. kept: strings that end it as its last characters. `found`
    is the one that ended the text, or None. UsageError for an empty string.
    """

    def __init__(self, stops: Sequence[str] = (), kept: Sequence[str] = ()) -> None:
        if "" in (*stops, *kept):
            raise UsageError("an empty stop string would end every text", "Leave it out.")
        self.found: str | None = None
        self._dropped = frozenset(stops)
        self._held = ""
        self._start = self._state = _automaton(dict.fromkeys((*stops, *kept)))

    def push(self, text: str) -> str:
        """What can be shown now that this text was added; nothing once a stop string was found."""
        if self.found is not None:
            return ""
        if not self._start.following:
            return text
        for i, character in enumerate(text):
            self._state = self._after(self._state, character)
            if self._state.stop is not None:
                self.found = self._state.stop
                shown = self._held + text[: i + 1]
                self._held = ""
                return shown.removesuffix(self.found) if self.found in self._dropped else shown
        whole = self._held + text
        n_shown = len(whole) - self._state.depth
        self._held = whole[n_shown:]
        return whole[:n_shown]

    def finish(self) -> str:
        """What was held back: the text ended and no stop string came of it."""
        held, self._held, self._state = self._held, "", self._start
        return held

    def _after(self, state: _State, character: str) -> _State:
        while character not in state.following:
            if state.shorter is None:
                return state
            state = state.shorter
        return state.following[character]


def _automaton(stops: dict[str, None]) -> _State:
    """The state before any text."""
    start = _State()
    for stop in stops:
        state = start
        for character in stop:
            state = state.following.setdefault(character, _State(state.depth + 1))
        state.stop = stop
    waiting = deque(start.following.values())
    for state in waiting:
        state.shorter = start
    while waiting:
        state = waiting.popleft()
        for character, child in state.following.items():
            fallback = state.shorter
            while fallback is not None and character not in fallback.following:
                fallback = fallback.shorter
            child.shorter = start if fallback is None else fallback.following[character]
            child.stop = child.stop or child.shorter.stop
            waiting.append(child)
    return start
