from __future__ import annotations

import pytest

from app.catalogue import CatalogueLibrary
from app.proposal.shell import parse_command
from app.relay.inline.facts import ReplayFacts, replay_facts
from app.replay.evidence import ReplayOptions
from app.request_rules.served import served_by
from app.serve_config.resolve import resolve

LIBRARY = CatalogueLibrary()


def facts(words: str) -> ReplayFacts:
    config = resolve(parse_command(f"vllm serve m {words}"), LIBRARY.get("0.32.0")).config
    assert config is not None
    return replay_facts(config, served_by(config))


def test_a_plain_server_draws_plainly() -> None:
    options = ReplayOptions(speculative=False)
    assert facts("") == ReplayFacts("0.32.0", options, returns_masks=False)
    assert facts("--return-sampling-mask").returns_masks is True
    assert facts("$EXTRA").returns_masks is None


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--use-fp64-gumbel", ReplayOptions(use_fp64_gumbel=True, speculative=False)),
        (
            """--watermark-config '{"key": 1}'""",
            ReplayOptions(watermark=True, speculative=False),
        ),
        (
            """--speculative-config '{"method": "ngram", "num_speculative_tokens": 2}'""",
            ReplayOptions(speculative=True, num_speculative_tokens=2),
        ),
        (
            """--speculative-config '{"method": "ngram", "num_speculative_tokens": 2,
            "rejection_sample_method": "block", "draft_sample_method": "probabilistic"}'""",
            ReplayOptions(
                speculative=True,
                rejection_sample_method="block",
                draft_sample_method="probabilistic",
                num_speculative_tokens=2,
            ),
        ),
        ("--speculative-config $SPEC", ReplayOptions(speculative=None)),
    ],
)
def test_what_the_configuration_says_of_the_draw_is_passed_on(
    words: str, options: ReplayOptions
) -> None:
    assert facts(words).options == options
