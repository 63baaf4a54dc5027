"""Which tokens a grammar allows next.

Owns llguidance: its set-up for a tokenizer, done when the first grammar comes, and the state of one text. A mask is
computed in a thread of its own while the model computes (llguidance lets go of the GIL). A token that ends the text is
allowed where the grammar is complete, and nowhere else. Control tokens have no text that a grammar could ask for; they
are named as tokens, <text> or <[id]>.
"""

import contextlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmkit.errors import GrammarError
from llmkit.sampling.gbnf import TokenSet, parse_gbnf
from llmkit.sampling.gbnf_check import check_rules
from llmkit.sampling.gbnf_lark import HEAD, is_regular, to_lark
from llmkit.sampling.json_schema import Schema, read_schema

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Mask = NDArray[np.uint32]

_LIMITS = dict(max_items_in_row=5_000, step_max_items=200_000, max_lexer_states=100_000, verbose_errors=False)


class GrammarTokenizer(Protocol):
    """What is needed of a tokenizer."""

    n_vocab: int
    eog_ids: frozenset[int]

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]: ...

    def piece_bytes(self, id: int, special: bool = False) -> bytes: ...


class GrammarCompiler:
    """Makes grammars for one tokenizer. May be used from several threads at once; setting it up waits for the first.

    n_vocab: how many logits the model has, if more than the tokenizer has tokens.
    """

    def __init__(self, tokenizer: GrammarTokenizer, n_vocab: int = 0) -> None:
        self._tokenizer = tokenizer
        # Without a token that ends a text there is one beyond the last: llguidance needs one.
        self._n_vocab = max(n_vocab, tokenizer.n_vocab) + (not tokenizer.eog_ids)
        self._lock = threading.Lock()
        self._ready: LLTokenizer | None = None

    def from_gbnf(self, text: str) -> "Grammar":
        """A grammar in llama.cpp's notation; GrammarError with the line and the reason."""
        rules = parse_gbnf(text)
        check_rules(rules)
        if is_regular(rules):
            with contextlib.suppress(GrammarError):  # what is too large for one terminal may do as rules
                return self._compiled(to_lark(rules, self._token_text, as_terminals=True))
        return self._compiled(to_lark(rules, self._token_text, as_terminals=False))

    def from_json_schema(self, schema: Schema | str) -> "Grammar":
        """The JSON texts that a schema describes; GrammarError for one that is wrong or not supported."""
        grammar = self._compiled(f"{HEAD}start: %json {json.dumps(read_schema(schema))}\n")
        grammar.start_mask()
        try:
            grammar.mask()  # the first token needs it anyway; a $ref that leads to itself alone shows only here
        except GrammarError as error:
            if "NoExtensionBias" in error.message:
                raise GrammarError("nothing satisfies the JSON schema: its references lead to themselves") from error
            raise
        return grammar

    def _compiled(self, lark: str) -> "Grammar":
        from llguidance import LLMatcher, LLParserLimits

        tokenizer = self._set_up()
        text = json.dumps({"grammars": [{"lark_grammar": lark}]})
        limits = LLParserLimits(**_LIMITS)
        make = _deep_threads("grammar", 1).submit(LLMatcher, tokenizer, text, log_level=0, limits=limits).result
        matcher = guarded(make)
        return Grammar(matcher, self._n_vocab, self._tokenizer.eog_ids)

    def _set_up(self) -> "LLTokenizer":
        with self._lock:
            if self._ready is None:
                self._ready = _llguidance_tokenizer(self._tokenizer, self._n_vocab)
            return self._ready

    def _token_text(self, tokens: TokenSet) -> str:
        """How llguidance writes one token, or all others that do not end a text."""
        n_vocab, name = self._tokenizer.n_vocab, tokens.name
        if isinstance(name, str):
            ids = self._tokenizer.encode(name, add_special=False, parse_special=True)
            if len(ids) != 1:
                raise GrammarError(f"line {tokens.line}: {name[:40]} is no token of this model")
            name = ids[0]
        if name >= n_vocab:
            raise GrammarError(f"line {tokens.line}: there is no token {name}; the last one is {n_vocab - 1}")
        if not tokens.negated:
            return f"<[{name}]>"
        return f"<[^{','.join(map(str, sorted({name, *self._tokenizer.eog_ids})))}]>"


class Grammar:
    """Where one text is in a grammar. Made by a GrammarCompiler; used by one thread at a time."""

    def __init__(self, matcher: "LLMatcher", n_vocab: int, eog_ids: frozenset[int]) -> None:
        self._matcher, self._n_vocab, self._eog_ids = matcher, n_vocab, eog_ids
        self._mask: Mask | None = None
        self._coming: Future[Mask] | None = None
        self._ended = False

    def start_mask(self) -> None:
        """Begins to compute the mask, so that it is there when `mask` is called."""
        if self._mask is None and self._coming is None:
            self._coming = _deep_threads("grammar-mask", 2).submit(self._compute)

    def mask(self) -> Mask:
        """A bit for each token that may come next, bit i mod 32 of word i div 32, uint32 [(n_vocab + 31) div 32].

        GrammarError where the grammar is too complex to go on with.
        """
        if self._mask is None:
            coming, self._coming = self._coming, None
            self._mask = self._compute() if coming is None else coming.result()
        return self._mask

    def accept(self, token: int) -> None:
        """Takes note of the token that came; GrammarError if it was not allowed."""
        self._settle()
        self._mask = None
        if token in self._eog_ids:
            self._ended = True
        elif not guarded(lambda: self._matcher, lambda matcher: matcher.consume_token(token)):
            raise GrammarError(f"token {token} does not continue the text as the grammar asks")

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing can follow."""
        self._settle()
        return self._ended or bool(self._matcher.is_stopped())

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        self._settle()
        return self._ended or bool(self._matcher.is_accepting())

    def clone(self) -> "Grammar":
        """The same state for another text."""
        self._settle()
        copy = Grammar(self._matcher.deep_copy(), self._n_vocab, self._eog_ids)
        copy._mask, copy._ended = self._mask, self._ended
        return copy

    def _settle(self) -> None:
        """Waits for a mask that is being computed: llguidance's state must not be used meanwhile."""
        if self._coming is not None:
            self.mask()

    def _compute(self) -> Mask:
        words = np.zeros((self._n_vocab + 31) // 32, dtype=np.uint32)
        guarded(lambda: self._matcher, lambda m: m.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes))
        return words


def guarded(make: Callable[[], Any], use: Callable[[Any], Any] | None = None) -> Any:
    """Calls llguidance; what it raises, panics of its compiled code included, and its error states are GrammarErrors.

    make: gives the matcher. use: what to do with it, whose result is returned; else the matcher is.
    """
    try:
        matcher = make()
        result = matcher if use is None else use(matcher)
        reason = matcher.get_error() if matcher.is_error() else ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = f"{type(error).__name__}: {error}"
    if reason:
        first = reason.strip().splitlines()[0]
        _, _, cause = first.rpartition("failed to compile JSON schema: ")
        raise GrammarError(f"the grammar cannot be used: {cause[:300]}")
    return result


_STACK_BYTES = 512 << 20  # reserved, not used: llguidance's compiler calls itself once for each rule in a chain of them


_STACK_LOCK = threading.Lock()  # the size holds for whatever thread is started next


def _deep_threads(name: str, n: int) -> ThreadPoolExecutor:
    """n threads in which deep recursion does not overflow the stack, which would end the process; made once."""
    with _STACK_LOCK:
        return _made_threads(name, n)


@lru_cache(maxsize=2)
def _made_threads(name: str, n: int) -> ThreadPoolExecutor:
    before, ready = threading.stack_size(_STACK_BYTES), threading.Barrier(n)
    try:
        threads = ThreadPoolExecutor(n, thread_name_prefix=name)
        list(threads.map(lambda _: ready.wait(), range(n)))  # starts them all
    except RuntimeError as error:
        ready.abort()
        raise GrammarError(
            f"no thread with a stack of {_STACK_BYTES >> 20} MB can be started", "Raise the limit of `ulimit -v`."
        ) from error
    finally:
        threading.stack_size(before)
    return threads


class _Vocabulary:
    """A tokenizer as llguidance wants it: the bytes of all tokens. A first byte of 0xFF marks one without a text."""

    def __init__(self, tokenizer: GrammarTokenizer, n_vocab: int) -> None:
        self.eos_token_id = min(tokenizer.eog_ids, default=n_vocab - 1)
        self.bos_token_id = None
        self.tokens = [tokenizer.piece_bytes(id) or b"\xff%d" % id for id in range(n_vocab)]
        self.special_token_ids = [id for id, piece in enumerate(self.tokens) if piece.startswith(b"\xff")]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False, parse_special=False)


def _llguidance_tokenizer(tokenizer: GrammarTokenizer, n_vocab: int) -> "LLTokenizer":
    from llguidance import LLTokenizer, TokenizerWrapper

    eog_ids = sorted(tokenizer.eog_ids) or [n_vocab - 1]
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, n_vocab)), n_vocab=n_vocab, eos_token=eog_ids)
