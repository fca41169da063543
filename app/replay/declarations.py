"""The replay checks, declared; their docs page, `GET /rules` and reports derive from here."""

from __future__ import annotations

from app.replay.statistics.declarations import LIKELIHOOD, PIT, RANKS, TRAINER
from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Severity

_GUMBEL = "v1/worker/gpu/sample/gumbel.py::gumbel_sample"
_SAMPLER = "v1/worker/gpu/sample/sampler.py::Sampler.sample"
_SERVING = "entrypoints/scale_out/token_in_token_out/serving.py::_create_tokens_logprobs"


def _check(
    slug: str,
    title: str,
    explanation: str,
    remedy: str,
    source: str,
    severity: Severity = Severity.ERROR,
    versions: str = "",
) -> Declaration:
    return Declaration(
        id=f"replay-{slug}",
        title=title,
        explanation=explanation,
        remedy=remedy,
        severity=severity,
        area="replay",
        source=source,
        gate=Gate.REPLAY,
        versions=versions,
    )


CHOICES = _check(
    "choices",
    "Choices are numbered 0 to n - 1, each once",
    "A choice's index decides its seed (seed + index), and clients key rollouts by it. Two "
    "choices under one index mean that one overwrites the other. vLLM 0.28 without streaming "
    "returns only the choices that finished in the last step, which is said as a warning.",
    'On 0.28 send `"output_kind": 2` with n > 1, or use 0.29 or later.',
    "v1/engine/parallel_sampling.py::ParentRequest",
)
ALIGNMENT = _check(
    "alignment",
    "The i-th logprob entry is about the i-th token",
    "Logprobs of another position renormalise to a wrong importance ratio without any other "
    "sign. Entries shifted by one are recognised as such.",
    "Take token_ids, sampling_mask and logprobs from the same response and cut all three alike.",
    _SERVING,
)
IDS = _check(
    "ids",
    "Token ids are those of the model's vocabulary",
    "Ids are at least 0 and below the vocabulary size (`options.vocab_size`, the rows of the "
    "LM head, which may be more than the tokenizer knows); without it, below 2**31. Sentinels, "
    "uninitialised memory and the ids of another tokenizer show up here. Ids from "
    "`options.tokenizer_size` on, where that is given, are of padded rows of the LM head: valid, "
    "though they stand for no text, which is a warning.",
    "Compare the vocabulary of the model that answered with the one assumed.",
    _SAMPLER,
)
MASK_UNIQUE = _check(
    "mask-unique",
    "A mask names each id once",
    "A mask is a set; an id given twice would count twice when a trainer renormalises.",
    "Look for whoever re-packed the masks; vLLM encodes them from a bit set or a compact list.",
    "v1/worker/gpu/sample/sampling_mask.py",
)
MASK_ORDER = _check(
    "mask-order",
    "A mask's ids ascend",
    "vLLM sends them ascending. Order carries no meaning, so this only tells that somebody "
    "re-packed them.",
    "Nothing needs to be done.",
    "v1/worker/gpu/sample/sampling_mask.py",
    Severity.INFO,
)
MASK_EMPTY = _check(
    "mask-empty",
    "No sampled token has an empty mask",
    "Something was drawn, so something survived the filters. Empty rows come from kernels that "
    "did not run, or from padding that was taken for rows.",
    "Check that Model Runner V2 runs with Triton and that no plugin replaces its sampler.",
    _SAMPLER,
)
SAMPLED_IN_MASK = _check(
    "sampled-in-mask",
    "The sampled id is in its mask",
    "Renormalising over a mask that lacks the sampled token gives a log of zero. Natural causes: "
    "masks of another position or another request, speculative decoding with synthetic "
    "acceptance, an infinite logit bias, forced tokens (`trace_decode_token_ids`).",
    "Take masks and tokens from the same response; do not repair the mask.",
    _GUMBEL,
)
MASK_SIZE = _check(
    "mask-size",
    "A mask has at most top_k ids, ties aside",
    "PyTorch's sorting path keeps every id that ties with the k-th (0.28 and 0.29 with fewer "
    "than 8 rows a step, and wherever Triton is missing); Triton's keeps exactly k, save a few "
    "more near top_p = 1. So more than top_k ids are fine when all from the k-th on have equal "
    "logprobs. A thinking budget or a logit bias near 1e8 breaks the Triton search, and masks "
    "of any size follow.",
    "Ask for as many logprobs as the mask is wide to let ties be told from a mix-up.",
    "v1/worker/gpu/sample/states.py; v1/sample/ops/topk_topp_sampler.py::apply_top_k_top_p",
)
NORMALISATION = _check(
    "normalisation",
    "Probabilities over the mask sum to one",
    "With `--logprobs-mode processed_logprobs` the logprobs are a log-softmax over the mask. A "
    "sum below one is the mass that the mask kept of a wider distribution: raw logprobs, whose "
    "temperature is not applied either. Where some members have no logprob the sum may be "
    "anything up to one.",
    "Start the server with `--logprobs-mode processed_logprobs`.",
    "config/vllm.py::_verify_sampling_replay_config",
)
OUTSIDE_MASK = _check(
    "outside-mask",
    "No id outside the mask has a finite logprob",
    "Processed logprobs are -inf (sent as -9999) outside the mask. A finite one means raw "
    "logprobs, the mask of another row, or a mask that lost an id.",
    "Start the server with `--logprobs-mode processed_logprobs`; take masks unchanged.",
    _SAMPLER,
)
MASK_FINITE = _check(
    "mask-finite",
    "Every member of a mask has a finite logprob",
    "The mask is the set of ids with finite logits. A member with -9999, or one that is missing "
    "from a list of candidates that goes down to -9999, was not in the engine's mask. Only a "
    "thinking budget or an overwhelming logit bias brings finite logits that low.",
    "Look for whoever re-packed the masks.",
    "v1/worker/gpu/sample/sampler.py::Sampler.sample",
)
LOGPROB_RANGE = _check(
    "logprob-range",
    "No logprob is above zero",
    "A probability above one is no probability: logits were stored instead of logprobs, or "
    "numbers were shifted.",
    "Store what the server sent.",
    _SERVING,
)
SAMPLED_LOGPROB = _check(
    "sampled-logprob",
    "The sampled token's logprob is finite and the same wherever it is given",
    "It comes as the entry's own and again among the candidates. -9999 for a sampled token "
    "means that it was forced, or that its logit was not finite.",
    "Treat such a token as one without a logprob.",
    _SERVING,
)
CANDIDATES = _check(
    "candidates",
    "Candidates have one logprob each, the most likely first",
    "The list is the sampled token and then the most likely ones, duplicates merged. One id with "
    "two different logprobs is an error; another order only tells that somebody re-packed the "
    "list.",
    "Store the list as it came.",
    _SERVING,
)
CANDIDATE_RANKS = _check(
    "candidate-ranks",
    "Ranks are the places of candidates by logprob",
    "From 0.32 on every logprob comes with its rank: the place among the most likely tokens, and "
    "for a sampled token that is none of them the number of tokens that are no less likely. No "
    "draw depends on ranks, so others only tell that somebody re-packed or mixed the lists.",
    "Store the list as it came.",
    "v1/worker/gpu/sample/logprob.py; " + _SERVING,
    Severity.WARNING,
    versions=">=0.32",
)
MIN_P = _check(
    "min-p",
    "Every member of a mask has at least min_p times the largest probability",
    "min_p removes an id whose logit is below the largest plus ln(min_p). A member below that "
    "line means that min_p was not applied, or that the mask is another row's.",
    "Compare the request that was sent with the one that was meant.",
    "v1/worker/gpu/sample/min_p.py",
)
TOP_P = _check(
    "top-p",
    "A mask of exactly top_k ids needs all of them to reach top_p",
    "top_p keeps the smallest set that reaches it among the top_k most likely. Where all top_k "
    "survived, the least likely should hold more than 1 - top_p; where fewer did, the returned "
    "numbers cannot tell. A single row may break this honestly, when top_p cuts through ids that "
    "tie with the k-th; that most rows do means that top_p was not applied.",
    "Compare the request that was sent with the one that was meant.",
    "v1/sample/ops/topk_topp_sampler.py::apply_top_k_top_p",
    Severity.WARNING,
)
DRAW = _check(
    "draw",
    "The seeded draw gives the sampled token",
    "The engine's noise depends on seed, position and token id alone, so the draw can be "
    "repeated from mask and logprobs: Philox up to 0.30, MurmurHash3 from 0.31 on. A row where "
    "another id wins by more than the tolerance was not drawn this way.",
    "See the finding's diagnosis: other version, seed or position; watermarking; speculation.",
    _GUMBEL,
)
USAGE = _check(
    "usage",
    "The response's own token counts match it",
    "A count that differs means that the response was cut or its prompt is another one; the "
    "position of every draw follows from the prompt's length.",
    "Use the request and the response of one exchange, whole.",
    "entrypoints/scale_out/token_in_token_out/serving.py",
    Severity.WARNING,
)
LENGTH = _check(
    "length",
    "No choice has more tokens than max_tokens",
    "vLLM ends a choice at max_tokens at the latest, also where it speculates. A longer one is "
    "the answer to another request, or has rows twice.",
    "Give the request as it was sent, and the response as it came.",
    "v1/core/sched/utils.py::check_stop",
)
UNFINISHED = _check(
    "unfinished",
    "The choice finished by itself",
    "An aborted or cut choice is a prefix: consistent as far as it goes, and no whole rollout.",
    "Do not train on it as if it had ended.",
    "v1/engine/output_processor.py",
    Severity.WARNING,
)
CUMULATIVE = _check(
    "cumulative",
    "Chunks add to each other",
    "Every later chunk begins with all earlier tokens, as cumulative output does. Joined as "
    "increments, tokens appear twice. One or two such chunks may be chance and are a warning.",
    "Give the last chunk as the response.",
    "v1/engine/output_processor.py",
)
CHUNKS = _check(
    "chunks",
    "Each chunk has the masks and logprobs of its own tokens",
    "vLLM fills a chunk with exactly the positions of its token_ids. Where a recorder held back "
    "text, or re-cut the stream, parts of a token lie in different chunks; joined they may fit all "
    "the same, and are refused where they do not.",
    "Record chunks as they came.",
    "entrypoints/scale_out/token_in_token_out/serving.py",
    Severity.WARNING,
)
REQUEST = _check(
    "request",
    "vLLM would have answered the request with masks",
    "A server that returns sampling masks refuses temperature <= 0 and top_k <= 0, so such a "
    "request is not the one that was answered.",
    "Give the request as it was sent.",
    "v1/engine/input_processor.py::InputProcessor._validate_params",
    Severity.WARNING,
)

DECLARATIONS = (
    CHOICES,
    ALIGNMENT,
    IDS,
    MASK_UNIQUE,
    MASK_ORDER,
    MASK_EMPTY,
    SAMPLED_IN_MASK,
    MASK_SIZE,
    NORMALISATION,
    OUTSIDE_MASK,
    MASK_FINITE,
    LOGPROB_RANGE,
    SAMPLED_LOGPROB,
    CANDIDATES,
    CANDIDATE_RANKS,
    MIN_P,
    TOP_P,
    DRAW,
    PIT,
    LIKELIHOOD,
    RANKS,
    TRAINER,
    USAGE,
    LENGTH,
    UNFINISHED,
    CUMULATIVE,
    CHUNKS,
    REQUEST,
)
