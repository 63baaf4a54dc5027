"""The named errors that llmkit raises for its users.

This module owns what can go wrong for a reason outside our code: a file, an option, a download, a context that is
full. It knows nothing about how an error is shown (report.py) and imports nothing. Our own broken invariants are
`assert`s, not these.
"""


class LlmkitError(Exception):
    """Something the user can act on.

    `message` is one sentence that says what is wrong, naming the file, key or option; `hint` says what to do about it
    and may be empty. `exit_code` is what a command ends with when it meets this error.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LlmkitError):
    """A command was called with options or arguments that make no sense together."""


class GrammarError(UsageError):
    """A grammar or JSON schema cannot be read, is not supported, or is too large."""


class ModelFileError(LlmkitError):
    """Something is wrong with a model file; the base of all errors that reading a GGUF raises."""


class NotGgufError(ModelFileError):
    """The path holds something else than a little-endian GGUF file, or cannot be read as a file at all."""


class TruncatedFileError(ModelFileError):
    """The file ends before what its own header announces."""


class UnsupportedVersionError(ModelFileError):
    """The file is a GGUF of a version that llmkit does not read."""


class MetadataError(ModelFileError):
    """A metadata key is missing, doubled, of the wrong type, or its value is impossible."""


class TensorError(ModelFileError):
    """A tensor is missing, doubled, misshapen, misaligned, overlapping, or outside the file."""


class SplitError(ModelFileError):
    """The parts of a split model are not all there, or do not belong together."""


class UnsupportedError(LlmkitError):
    """The input is valid but llmkit does not run it: an architecture, a tensor type."""


class ModelNotFoundError(LlmkitError):
    """No file and no pulled model has the name that was asked for."""


class TokenizerError(LlmkitError):
    """The file has no tokenizer, or one that is malformed or of an unknown kind."""


class ChatTemplateError(UsageError):
    """A chat template is malformed, unsafe or too expensive, or it refuses the messages."""


class ContextFullError(LlmkitError):
    """The tokens do not fit into the context; nothing has been changed."""


class PromptTooLongError(ContextFullError):
    """A prompt has more tokens than one text may have; `n_prompt` and `n_ctx` say how many each."""

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        super().__init__(
            f"the prompt has {n_prompt} tokens, but the context holds {n_ctx}",
            "Give a larger context with -c, or a shorter prompt.",
        )
        self.n_prompt, self.n_ctx = n_prompt, n_ctx


class RewindError(LlmkitError):
    """An operation on a sequence needs tokens that its memory no longer holds; nothing has been changed."""


class NumericsError(LlmkitError):
    """A computation gave NaN or infinity where a number was needed.

    sequences: of a batch, those whose logits were so; the others would have been computed.
    """

    def __init__(self, message: str, hint: str = "", sequences: tuple[object, ...] = ()) -> None:
        super().__init__(message, hint)
        self.sequences = sequences


class BusyError(LlmkitError):
    """A server cannot take in a request now; `retry_after_s` says when it may be worth trying again."""

    def __init__(self, message: str, hint: str = "", retry_after_s: float = 1.0) -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class QueueFullError(BusyError):
    """As many requests are waiting as may wait."""


class DrainingError(BusyError):
    """The engine is ending and takes in nothing more."""


class RequestTimeoutError(LlmkitError):
    """A request was not through in the time that it had."""


class DownloadError(LlmkitError):
    """A model could not be fetched, or what arrived is not what was asked for."""


class ImatrixError(LlmkitError):
    """An importance matrix cannot be read, or does not go with the model."""


class QuantizeError(LlmkitError):
    """A model cannot be quantised as asked."""


class OutputError(LlmkitError):
    """A file that the user asked for could not be written."""


class CacheError(LlmkitError):
    """The user cache cannot be used: not writable, full, or holding something unexpected."""
