"""Two ends of a text that only count at its lines, as in llama.cpp's server: a time limit, and an indentation."""

from __future__ import annotations


class LineLimits:
    """t_max_s: the text ends with the first token with a newline after so many seconds. n_indent: it ends when a line
    after the first begins with fewer blanks than that."""

    def __init__(self, t_max_s: float | None = None, n_indent: int = 0) -> None:
        self.t_max_s, self.n_indent = t_max_s, n_indent
        self.has_new_line = False
        self._line = ""  # of the line being written, what is known: its blanks, and the character behind them

    def reached(self, text: str, seconds: float) -> bool:
        """Whether the text ends with this piece, so long after its first token."""
        if "\n" in text:
            late = self.t_max_s is not None and seconds > self.t_max_s
        else:
            late = False
        return self._unindented(text) or late

    def _unindented(self, text: str) -> bool:
        for i, line in enumerate(text.split("\n")):
            if i:
                self.has_new_line, self._line = True, ""
            if self._line.strip(" \t"):
                continue
            self._line += line
            n_blank = len(self._line) - len(self._line.lstrip(" \t"))
            if self.has_new_line and n_blank < min(self.n_indent, len(self._line)):
                return True
        return False
