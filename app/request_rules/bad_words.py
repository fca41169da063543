"""The rule about `bad_words`, whose tokens Model Runner V2 keeps in a table of fixed size.

vLLM tokenises each word twice, as it is and after a space, and keeps the second only where it
has as many tokens and another first one (`SamplingParams.update_from_tokenizer`, the same in
0.28 to 0.33). More tokens than the table holds raise in the worker, which ends the engine.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from app.request_rules.counting import Counts
from app.request_rules.request import GenerationRequest, Route
from app.request_rules.rule import RequestExample, request_rule
from app.request_rules.served import Served
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Finding, Severity

# Longer text is not sent to be counted: its tokens would be longer than any vocabulary's.
_MOST_COUNTED: Final = 2**20
_FORMS: Final = ("NFC", "NFD", "NFKC", "NFKD")
_BLANK: Final = re.compile(r"[\x00-\x20\s]")
# The mark that sentencepiece puts for a blank and before the text has three bytes.
_MARK: Final = 3
# Of a tokenizer that knows the language; only how many texts are asked about at once rests on it.
_USUAL_BYTES: Final = 3
_FEWEST_ASKED: Final = 8
_V2 = "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m"


def most_tokens(text: str) -> int:
    """Give a number of tokens that no tokenizer in use exceeds for a text.

    No token is shorter than a byte: byte-level BPE begins with bytes, and sentencepiece falls
    back to them. What lengthens a text before that is a Unicode normal form or lower case (the
    longest is taken), a blank that becomes sentencepiece's three-byte mark, and that mark put
    before the text. A tokenizer with rules of its own that write more is not covered.
    """
    return max(map(_with_marks, _spellings(text))) + _MARK


def _spellings(text: str) -> Iterable[str]:
    if text.isascii():
        return (text,)
    cases = {text, text.lower(), text.casefold()}
    return cases | {unicodedata.normalize(form, one) for form in _FORMS for one in cases}


def _with_marks(text: str) -> int:
    blanks = 0 if text.isalnum() else len(_BLANK.findall(text))
    return len(text.encode(errors="replace")) + (_MARK - 1) * blanks


@dataclass(frozen=True, slots=True)
class _Sum:
    """How many tokens the words have: between `least` and `most`, equal once all is counted.

    `asks` are texts to have counted next.
    """

    least: int
    most: int
    asks: tuple[str, ...]


class _Open(NamedTuple):
    """A text to count: tokens of it, and of its other spelling, at most; its own, usually."""

    most: int
    usual: int
    text: str


def _summed(words: Sequence[str], counts: Counts, limit: int) -> _Sum:
    least = most = 0
    open_: list[_Open] = []
    for word in words:
        plain = word.lstrip()
        if not plain:
            continue
        known = counts.get(plain)
        if known is None:
            at_most = 2 * most_tokens(plain)
            most += at_most
            if plain not in counts:
                open_.append(_Open(at_most, -(-len(plain) // _USUAL_BYTES), plain))
            continue
        least += known.count
        most += known.count
        spaced = counts.get(" " + plain)
        if spaced is None:
            most += known.count
            if known.count and " " + plain not in counts:
                open_.append(_Open(known.count, 0, " " + plain))
        elif spaced.count == known.count and spaced.first != known.first:
            least += known.count
            most += known.count
    if not least <= limit < most:
        return _Sum(least, most, ())
    return _Sum(least, most, _most_telling(open_, most - limit, limit - least))


def _most_telling(open_: list[_Open], over: int, room: int) -> tuple[str, ...]:
    """Give the texts whose counts are likely to settle it, those with most in doubt first.

    It is settled once `over` tokens are known not to be there, or more than `room` known to be.
    """
    asks: dict[str, None] = {}
    for one in sorted(open_, reverse=True):
        if (over <= 0 or room < 0) and len(asks) >= _FEWEST_ASKED:
            break
        asks[one.text] = None
        over -= max(1, one.most - 2 * one.usual)
        room -= one.usual
    return tuple(asks)


def _words(request: GenerationRequest) -> list[str]:
    """Give the distinct words; none where vLLM refuses or ignores them."""
    known: list[str] | None = request.memo.get("bad_words")
    if known is None:
        words = request.sent("bad_words")
        known = request.memo["bad_words"] = (
            list(dict.fromkeys(words))
            if isinstance(words, list)
            and set(map(type, words)) == {str}
            and "" not in words
            and not request.switch("use_beam_search")
            else []
        )
    return known


def texts(request: GenerationRequest, served: Served) -> Sequence[str]:
    """Give the texts that must be counted before the rule can be sure."""
    limit = served.max_bad_word_tokens
    if not served.runs_v2 or limit is None or served.has_tokenizer is False:
        return ()
    words = _words(request)
    if _too_many(words, served) or _size(words) > _MOST_COUNTED:
        return ()
    return () if served.is_encoder_decoder else _summed(words, request.counts, limit).asks


def _size(words: Sequence[str]) -> int:
    return len("".join(words).encode(errors="replace"))


def _too_many(words: Sequence[str], served: Served) -> bool:
    return served.max_bad_words is not None and len(words) > served.max_bad_words


@request_rule(
    Declaration(
        id="request-bad-words",
        title="Not more bad words than the engine's tables hold",
        explanation="Each of `bad_words` becomes one or two sequences of tokens; vLLM refuses "
        "more than `VLLM_MAX_NUM_BAD_WORDS` (128). More than `VLLM_MAX_BAD_WORDS_TOTAL_TOKENS` "
        "(1024) tokens in all raise in the worker of Model Runner V2, which ends the engine. "
        "Words that cannot have so many pass at once; of others the gate has the backend's "
        "`/tokenize` count the tokens. Where that cannot be had, "
        "`VLLM_ADMISSION_REQUEST_MAX_BAD_WORD_BYTES` bounds the text, and what passes in doubt is "
        "told of.",
        remedy="Send fewer or shorter bad words.",
        severity=Severity.ERROR,
        area="request",
        gate=Gate.REQUEST,
        source="v1/worker/gpu/sample/bad_words.py::BadWordsState.add_request",
        bad=(
            RequestExample(
                '{"prompt": "a", "bad_words": ["aa", "ab", "ac"]}',
                route=Route.COMPLETIONS,
                serve="VLLM_MAX_NUM_BAD_WORDS=2 vllm serve m",
            ),
        ),
        good=(
            RequestExample(
                '{"prompt": "a", "bad_words": ["aa", "ab", "ab"]}',
                note="the same word counts once",
                route=Route.COMPLETIONS,
                serve="VLLM_MAX_NUM_BAD_WORDS=2 vllm serve m",
            ),
            RequestExample(
                '{"prompt": "a", "bad_words": ["aa"]}', route=Route.COMPLETIONS, serve=_V2
            ),
        ),
    ),
    fields=("bad_words",),
    texts=texts,
)
def bad_words(request: GenerationRequest, served: Served) -> Iterator[Finding]:
    """Refuse too many words, and on Model Runner V2 too many tokens."""
    words = _words(request)
    if not words:
        return
    if _too_many(words, served):
        yield bad_words.finding(
            request,
            "bad_words",
            f"at most {served.max_bad_words} bad_words on this server, got {len(words)}",
            evidence={"entries": len(words), "limit": served.max_bad_words},
        )
    elif served.max_bad_word_tokens is not None and served.has_tokenizer is not False:
        yield from _of_tokens(request, served, words, served.max_bad_word_tokens)


def _of_tokens(
    request: GenerationRequest, served: Served, words: Sequence[str], limit: int
) -> Iterator[Finding]:
    """Judge by tokens on V2, by text where they are not known; of an unknown runner only tell."""
    size, allowed = _size(words), served.limits.bad_word_bytes
    if served.runs_v2 is False or (served.runs_v2 is None and size <= allowed):
        return
    counted = size <= _MOST_COUNTED
    known = _summed(words, request.counts, limit) if counted else _Sum(0, size, ())
    ends = f"more than {limit} tokens would end the engine"
    if known.least > limit:
        what = f"bad_words have at least {known.least} tokens on this server; {ends}"
        evidence = {"tokens": known.least, "limit": limit}
    elif known.most <= limit:
        return
    elif size > allowed:
        what = (
            f"bad_words have {size} bytes, their tokens could not be counted, and this gate then "
            f"lets {allowed} bytes through: {ends}"
        )
        evidence = {"bytes": size, "limit": allowed}
    else:
        yield bad_words.finding(
            request,
            "bad_words",
            f"the tokens of bad_words could not be counted; {ends}",
            severity=Severity.WARNING,
        )
        return
    severity = Severity.ERROR if served.runs_v2 else Severity.WARNING
    yield bad_words.finding(request, "bad_words", what, severity=severity, evidence=evidence)
