"""Configurations that start, but whose masks cannot be fetched or do not mean what they say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.catalogue.semantics import semantics_of
from app.rules.configuration.sampling_mask import AREA, MASK, beside, wants_mask
from app.rules.declaration import Example
from app.rules.facts import world_size
from app.rules.registry import rule
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import RUNNER_VARIABLE
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

_MASKED: Final = "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs"
_ROUTE: Final = "vllm/entrypoints/scale_out/factories.py"
_SAMPLER: Final = "vllm/v1/worker/gpu/spec_decode/rejection_sampler.py"
_PASSES: Final = "compilation_config.pass_config"
_DENSE: Final = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


def _speculative(method: str, **more: Any) -> str:
    keys = ", ".join(f'"{key}": {value}' for key, value in more.items())
    return (
        f"""{_MASKED} --speculative-config '{{"method": "ngram", "num_speculative_tokens": 3, """
        f""""rejection_sample_method": "{method}"{", " if keys else ""}{keys}}}'"""
    )


@rule(
    id="sampling-mask-route-off",
    title="No route returns the sampling masks",
    explanation="Masks are returned by `/inference/v1/generate` only. From 0.30 that route is "
    "off unless `--enable-scale-out` or `--tokens-only` is given (404 up to 0.31, then 403); "
    "`/v1/completions` and `/v1/chat/completions` never carry masks.",
    remedy="Add `--enable-scale-out`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_ROUTE,
    versions=">=0.30",
    bad=(Example(_MASKED),),
    good=(Example(f"{_MASKED} --enable-scale-out"), Example(f"{_MASKED} --tokens-only")),
)
def route(config: ServeConfig) -> Iterator[Finding]:
    """Look for an option that turns the route on."""
    if not wants_mask(config) or config["enable_scale_out"] or config["tokens_only"]:
        return
    status = semantics_of(config.catalogue.version).generate_disabled_status
    yield route.finding(
        "the masks cannot be fetched: /inference/v1/generate is off without --enable-scale-out "
        f"and answers {status}",
        location=config.place("enable_scale_out") or config.place(MASK),
        fix=Fix(
            "add --enable-scale-out",
            (SetFlag("enable_scale_out", value=True),),
            safe=not config.given("enable_scale_out"),
        ),
    )


@rule(
    id="sampling-mask-streams",
    title="Streamed responses carry no sampling masks",
    explanation="Up to 0.31 every chunk of a streamed `/inference/v1/generate` has "
    "`sampling_mask: null`; only whole responses carry masks.",
    remedy='Send `"stream": false`, or use vLLM 0.32 or newer.',
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/entrypoints/scale_out/token_in_token_out/serving.py",
    versions=">=0.28,<0.32",
    bad=(Example(_MASKED),),
    good=(Example("vllm serve m"),),
)
def streams(config: ServeConfig) -> Iterator[Finding]:
    """Tell wherever masks are on."""
    if wants_mask(config):
        yield streams.finding(
            f"in vLLM {config.catalogue.vllm_version} streamed responses have null masks; "
            'fetch them with "stream": false',
            location=config.place(MASK),
        )


@rule(
    id="sampling-mask-choices",
    title="Several choices of one request get lost",
    explanation="In 0.28 a whole response with `n` above 1 holds only the choices that finish in "
    'the last step. `"output_kind": 2` in the sampling parameters brings them all.',
    remedy='Send `"output_kind": 2` with `n` above 1, or one request a sample.',
    severity=Severity.INFO,
    area=AREA,
    source="vllm/entrypoints/scale_out/token_in_token_out/serving.py",
    versions=">=0.28,<0.29",
    bad=(Example(_MASKED),),
    good=(Example("vllm serve m"),),
)
def choices(config: ServeConfig) -> Iterator[Finding]:
    """Tell wherever masks are on."""
    if wants_mask(config):
        yield choices.finding(
            "in vLLM 0.28 a response with n above 1 loses choices unless the request sets "
            '"output_kind": 2',
            location=config.place(MASK),
        )


@rule(
    id="sampling-mask-runner-flip",
    title="Fused communication takes the server back to Model Runner V1",
    explanation="Up to 0.31 `fuse_gemm_comms` switches sequence parallelism on after the replay "
    "rules were checked. Model Runner V2 does not support that, so the server runs on V1: it "
    "starts, enforces the request rules, and returns no masks.",
    remedy="Turn `fuse_gemm_comms` off, or set `VLLM_USE_V2_MODEL_RUNNER=1` to fail instead.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.__post_init__",
    versions=">=0.28,<0.32",
    bad=(Example(f"{_MASKED} -tp 2 -cc.pass_config.fuse_gemm_comms=true", model_config=_DENSE),),
    good=(
        Example(f"{_MASKED} -cc.pass_config.fuse_gemm_comms=true", note="one rank: turned off"),
        Example(f"{RUNNER_VARIABLE}=1 {_MASKED} -tp 2 -cc.pass_config.fuse_gemm_comms=true"),
    ),
)
def runner_flip(config: ServeConfig) -> Iterator[Finding]:
    """Compare the runner at the replay check with what comes after."""
    if not wants_mask(config) or world_size(config, "tensor_parallel_size") < 2:
        return
    if not config[f"{_PASSES}.fuse_gemm_comms"]:
        return
    decision = decide_runner(config)
    if decision.version is Runner.V1 or decision.forced:
        return
    certain = config[f"{_PASSES}.sp_min_token_num"] is not None
    yield runner_flip.finding(
        "fuse_gemm_comms turns sequence parallelism on after the replay rules were checked"
        f"{'' if certain else ' (if the model is wide enough for it)'}: the server then runs on "
        "Model Runner V1 and returns no masks",
        location=config.place("compilation_config"),
        related=beside(config, config.place("compilation_config")),
        fix=Fix(
            "turn fuse_gemm_comms off",
            (SetFlag(f"{_PASSES}.fuse_gemm_comms", value=False),),
            safe=False,
        ),
    )


@rule(
    id="sampling-mask-synthetic-acceptance",
    title="Synthetic acceptance commits tokens outside their mask",
    explanation="`rejection_sample_method: synthetic` accepts drafted tokens at a fixed rate, "
    "whatever the model thinks of them. It is meant for benchmarks: the committed token can lie "
    "outside its own mask, and no draw can be repeated.",
    remedy="Use `standard` or `block`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SAMPLER,
    versions=">=0.32",
    bad=(Example(_speculative("synthetic", synthetic_acceptance_rates="[0.6, 0.6, 0.6]")),),
    good=(Example(_speculative("block")),),
)
def synthetic_acceptance(config: ServeConfig) -> Iterator[Finding]:
    """Look at the acceptance method."""
    if _acceptance(config) == "synthetic":
        yield synthetic_acceptance.finding(
            "with rejection_sample_method synthetic the sampled id can lie outside its mask; "
            "rows cannot be replayed",
            **_standard(config),
        )


@rule(
    id="sampling-mask-lossy-acceptance",
    title="Lossy acceptance changes the distribution",
    explanation="`rejection_sample_method: fly` accepts drafted tokens that rejection sampling "
    "would refuse. The sampled ids lie in their masks, but are not distributed as the returned "
    "probabilities say.",
    remedy="Use `standard` or `block`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SAMPLER,
    versions=">=0.33",
    bad=(Example(_speculative("fly")),),
    good=(Example(_speculative("standard")),),
)
def lossy_acceptance(config: ServeConfig) -> Iterator[Finding]:
    """Look at the acceptance method."""
    if _acceptance(config) == "fly":
        yield lossy_acceptance.finding(
            "with rejection_sample_method fly the sampled ids are not distributed as the "
            "returned probabilities say; draws cannot be replayed",
            **_standard(config),
        )


@rule(
    id="sampling-mask-watermark",
    title="Watermarked draws cannot be replayed",
    explanation="With `--watermark-config` tokens are drawn with keyed noise of the context "
    "instead of the seed. Masks and logprobs are unaffected; a request opts out with "
    '`"watermarking": false`.',
    remedy="Expect the draw of every row to be undecidable, or opt out a request.",
    severity=Severity.INFO,
    area=AREA,
    source="vllm/v1/worker/gpu/sample/sampler.py",
    versions=">=0.30",
    bad=(Example(f"""{_MASKED} --watermark-config '{{"key": 1}}'"""),),
    good=(Example(_MASKED),),
)
def watermark(config: ServeConfig) -> Iterator[Finding]:
    """Look for a watermark."""
    if wants_mask(config) and config["watermark_config"] is not None:
        yield watermark.finding(
            "watermarked tokens are not drawn from the request's seed; their draw cannot be "
            "replayed",
            location=config.place("watermark_config"),
        )


@rule(
    id="sampling-mask-trace-replay",
    title="Trace replay commits tokens outside their mask",
    explanation="With `--enable-trace-replay` a request can dictate its tokens "
    "(`trace_decode_token_ids`). Such a token need not be in the mask, which is the real one, "
    "and its logprob is then -9999.",
    remedy="Do not train on masks of requests that dictate tokens.",
    severity=Severity.INFO,
    area=AREA,
    source="vllm/v1/worker/gpu/sample/sampler.py",
    versions=">=0.29",
    bad=(Example(f"{_MASKED} --enable-trace-replay"),),
    good=(Example(_MASKED),),
)
def trace_replay(config: ServeConfig) -> Iterator[Finding]:
    """Look for trace replay."""
    if wants_mask(config) and config["enable_trace_replay"]:
        yield trace_replay.finding(
            "tokens that a request dictates with trace_decode_token_ids need not be in their mask",
            location=config.place("enable_trace_replay"),
        )


def _acceptance(config: ServeConfig) -> Any:
    speculation = speculation_of(config) if wants_mask(config) else None
    return None if speculation is None else speculation.value("rejection_sample_method")


def _standard(config: ServeConfig) -> dict[str, Any]:
    speculation = speculation_of(config)
    rates = ("synthetic_acceptance_rates", "synthetic_acceptance_length")
    given = () if speculation is None else tuple(r for r in rates if r in speculation.keys)
    place = config.place("speculative_config")
    return {
        "location": place,
        "related": beside(config, place),
        "fix": Fix(
            "accept by rejection sampling",
            (
                *(RemoveFlag(f"speculative_config.{rate}") for rate in given),
                SetFlag("speculative_config.rejection_sample_method", "standard"),
            ),
            safe=False,
        ),
    }
