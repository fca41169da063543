"""The statistical checks, declared."""

from __future__ import annotations

from app.rules.declaration import Declaration, Gate
from app.verdict.finding import Severity

_REMEDY = (
    "Compare the sampling parameters sent with those meant, and see that tokens, masks and "
    "logprobs are of one response. For proof instead of evidence send a seed."
)


def _test(slug: str, title: str, explanation: str, source: str) -> Declaration:
    return Declaration(
        id=f"replay-statistics-{slug}",
        title=title,
        explanation=explanation,
        remedy=_REMEDY,
        severity=Severity.ERROR,
        area="replay",
        source=source,
        gate=Gate.REPLAY,
    )


PIT = _test(
    "pit",
    "Sampled ids fall anywhere in their rows' distributions",
    "With the ids of a row ordered by probability, the drawn one's place in the cumulative "
    "distribution, randomised within its own step, is uniform for any row. A Kolmogorov-Smirnov "
    "test says whether it is. It notices what moves draws towards the likely or the unlikely end, "
    "without having to know the cause. Tested where the seeded draw leaves rows undecided; the "
    "power is in `docs/statistics.md`.",
    "Dawid, J. R. Stat. Soc. A 147, 1984; Simard, L'Ecuyer, J. Stat. Softw. 39(11), 2011",
)
LIKELIHOOD = _test(
    "likelihood",
    "Sampled ids are as likely as their rows make one expect",
    "The sum over rows of log p(sampled) and the row's entropy has mean zero. Tokens drawn at "
    "another temperature, greedily, or with other logprobs than those returned, are too likely or "
    "too unlikely. What decides is a likelihood ratio against other temperatures that holds its "
    "false-alarm rate for any number of rows. Tested where the seeded draw leaves rows undecided; "
    "the power is in `docs/statistics.md`.",
    "Shafer, Shen, Vereshchagin, Vovk, Stat. Sci. 26(1), 2011",
)
RANKS = _test(
    "ranks",
    "Each rank is sampled as often as its probabilities say",
    "How often the most likely id, the second, and so on, were drawn is compared with the sum of "
    "their probabilities over the rows. It notices a sampler that prefers or avoids a rank: always "
    "the second, never the first, an off-by-one. What decides is a likelihood ratio learned from "
    "earlier rows that holds its false-alarm rate for any number of rows. Tested where the seeded "
    "draw leaves rows undecided; the power is in `docs/statistics.md`.",
    "Dawid, J. R. Stat. Soc. A 147, 1984",
)
TRAINER = Declaration(
    id="replay-trainer",
    title="A trainer's logprobs are over the mask, as the sampler's are",
    explanation="Importance ratios compare like with like only if the trainer normalises over the "
    "same mask, at the same temperature, with the same weights. Where `options.trainer_logprobs` "
    "are given, an offset is told from bf16 noise and explained where that is possible: log kept "
    "mass of a trainer that normalises over the vocabulary, or another temperature. It is a "
    "warning: the response is what it is.",
    remedy="Normalise the trainer's logits over each row's mask, after dividing by the request's "
    "temperature.",
    severity=Severity.WARNING,
    area="replay",
    source="DeepSeek-V3.2, arXiv 2512.02556, section 3.1",
    gate=Gate.REPLAY,
)
