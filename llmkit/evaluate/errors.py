"""What can be wrong with the inputs of an evaluation, each by name."""

from llmkit.errors import LlmkitError


class EvaluationError(LlmkitError):
    """The base of everything wrong with what an evaluation reads."""


class EmptyTextError(EvaluationError):
    """There is no text."""


class TextEncodingError(EvaluationError):
    """The text is not UTF-8."""


class ShortTextError(EvaluationError):
    """The text has fewer tokens than two windows need."""


class TaskFileError(EvaluationError):
    """A file of tasks is not in its format, or a task does not fit into the context."""


class BaseFileError(EvaluationError):
    """A file of log-probabilities cannot be used; the base of the errors below."""


class NotABaseFileError(BaseFileError):
    """The file holds something else than log-probabilities."""


class TruncatedBaseFileError(BaseFileError):
    """The file is shorter or longer than its own header says."""


class OtherModelError(BaseFileError):
    """The log-probabilities come from a model with another vocabulary."""


class OtherLengthError(BaseFileError):
    """The log-probabilities were computed with another context length than the one asked for."""


class OtherTextError(BaseFileError):
    """The log-probabilities are of another text than the one given."""


class VocabularyError(EvaluationError):
    """Models that are to be compared do not share a vocabulary."""


class MissingLibraryError(EvaluationError):
    """An optional library is not installed."""
