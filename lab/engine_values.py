"""Compares the values that our rules derive with those of vLLM's finished configuration.

    python -m lab.engine_values VERSION... [--count N]

Takes the answers that `lab.engine_agreement` keeps and asks nothing. For each value: how often it
is the same, another one, or not derived for want of a fact; then what differs.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from app.catalogue import CatalogueLibrary
from app.proposal.envelope import read_envelope
from app.rules.derived import compilation, cuda_graphs, model, scheduler
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import Moment
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import Abstain, ServeConfig
from lab.engine_agreement import COUNT, VERSIONS, Answers
from lab.engine_cases import EngineCase, engine_cases
from lab.environment import Lab


def _uses_v2(config: ServeConfig) -> bool:
    version = decide_runner(config, Moment.LAST_CHECK).version
    if version is None:
        raise Abstain("which model runner")
    return version is Runner.V2


# Our value by the name that the oracle's facts have.
VALUES: Final[Mapping[str, Callable[[ServeConfig], Any]]] = {
    "max_model_len": model.max_model_len,
    "dtype": model.model_dtype,
    "quantization": model.quantization_method,
    "runner_type": model.runner_type,
    "convert_type": model.convert_type,
    "is_hybrid": model.is_hybrid,
    "is_attention_free": model.is_attention_free,
    "is_moe": model.is_moe,
    "use_mla": model.uses_mla,
    "max_num_batched_tokens": scheduler.max_num_batched_tokens,
    "max_num_seqs": scheduler.max_num_seqs,
    "enable_chunked_prefill": scheduler.enable_chunked_prefill,
    "enable_prefix_caching": scheduler.enable_prefix_caching,
    "distributed_executor_backend": scheduler.executor_backend,
    "async_scheduling": scheduler.async_scheduling,
    "use_v2_model_runner": _uses_v2,
    "compilation_mode": compilation.compilation_mode,
    "cudagraph_mode": cuda_graphs.graph_mode,
}
# What the CPU platform changes after rules have compared (multi-head latent attention there
# runs without chunks).
SETTLED_LATER: Final = frozenset(
    {"distributed_executor_backend", "enable_chunked_prefill", "enable_prefix_caching"}
    | {"max_num_batched_tokens", "compilation_mode"}
)


def is_settled_later(case: EngineCase, name: str) -> bool:
    """Whether vLLM changes the value once more after what rules compare."""
    words = " ".join(case.case.args)
    if name == "enable_prefix_caching" and ("--mm-encoder-only" in words or "ec_prod" in words):
        return True
    return case.case.platform == "cpu" and name in SETTLED_LATER


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.engine_values", description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--count", type=int, default=COUNT)
    options = parser.parse_args(arguments)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    examples: dict[tuple[str, str], list[str]] = defaultdict(list)
    for version in options.versions:
        catalogue = CatalogueLibrary().get(version)
        answers = Answers(Lab.default(), version)
        cases = [case for case in engine_cases(version, options.count) if answers.has(case)]
        for case, answer in zip(cases, answers.of(cases), strict=True):
            if not answer.accepted:
                continue
            config = resolve(read_envelope(case.envelope()).proposal, catalogue).config
            assert config is not None
            where = (
                f"{version} {case.model} on {case.case.platform}: {' '.join(case.case.args[1:])}"
            )
            for name, ours in VALUES.items():
                if name not in answer.facts or is_settled_later(case, name):
                    continue
                try:
                    value = ours(config)
                except Abstain as missing:
                    counts[name]["not derived"] += 1
                    examples[name, f"needs {missing.needs}"].append(where)
                    continue
                same = value == answer.facts[name]
                counts[name]["same" if same else "other"] += 1
                if not same:
                    examples[name, f"{value!r}, vLLM has {answer.facts[name]!r}"].append(where)
    for name, found in counts.items():
        print(f"{name}: {', '.join(f'{n} {kind}' for kind, n in found.items())}")
        kinds = [(what, those) for (of, what), those in examples.items() if of == name]
        for what, those in sorted(kinds, key=lambda kind: -len(kind[1]))[:8]:
            print(f"    {len(those)} x {what}: {those[0][:200]}")
    return int(any(found["other"] for found in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
