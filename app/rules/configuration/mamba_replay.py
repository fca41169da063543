"""ReplaySSM and RecoverSSM: states that are replayed from a buffer of recent tokens.

Source: `config/vllm.py::VllmConfig.validate_mamba_cached_kernel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.rules.configuration.compilation_modes import KIMI
from app.rules.configuration.mamba import AREA, FALCON
from app.rules.declaration import Example
from app.rules.derived.kv_transfer import OFFLOADING, TRANSFER, kv_transfer
from app.rules.derived.mamba import (
    BACKEND,
    CACHE_MODE,
    RECOVERING,
    REPLAY,
    Replay,
    cache_mode,
    drafted_tokens,
    mamba_backend,
    replay,
)
from app.rules.derived.model import has_ability, model_class
from app.rules.derived.parallel import PP, since, size
from app.rules.registry import rule
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import Moment
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Edit, Fix, RemoveFlag, SetFlag

_SOURCE: Final = "vllm/config/vllm.py::VllmConfig.validate_mamba_cached_kernel"
_BUFFER: Final = "replayssm_buffer_len"
_ROUNDING: Final = "enable_mamba_cache_stochastic_rounding"
_PREFIXES: Final = "enable_prefix_caching"
_BUFFER_LIMIT: Final = 16  # of FlashInfer's kernel
_V1: Final = "VLLM_USE_V2_MODEL_RUNNER=0"
_DRAFTS: Final = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""
_FLASHINFER: Final = "--mamba-backend flashinfer"

NEMOTRON: Final[dict[str, Any]] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "chunk_size": 128,
    "conv_kernel": 4,
    "head_dim": 128,
    "hidden_size": 4480,
    "hybrid_override_pattern": "M-M*",
    "intermediate_size": 15680,
    "mamba_head_dim": 80,
    "mamba_num_heads": 128,
    "max_position_embeddings": 131072,
    "n_groups": 8,
    "num_attention_heads": 40,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "ssm_state_size": 128,
    "torch_dtype": "bfloat16",
    "vocab_size": 131072,
}


def _drop() -> Fix:
    return Fix("drop --use-replayssm", (RemoveFlag(REPLAY),), safe=False)


def _runs_on_v2(config: ServeConfig) -> bool:
    version = decide_runner(config, Moment.LAST_CHECK).version
    if version is None:
        raise Abstain("which model runner vLLM takes")
    return version is Runner.V2


@rule(
    id="mamba-replay-model",
    title="The model's states cannot be replayed",
    explanation="`--use-replayssm` is for models whose code provides for it: Nemotron-H, and from "
    "0.29 on Kimi Linear and Kimi K3. From 0.29 to 0.31 only the two of Kimi go with speculative "
    "decoding, in 0.28 none.",
    remedy="Drop `--use-replayssm`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    covers=("replayssm-model",),
    bad=(
        Example("vllm serve m --use-replayssm", model_config=FALCON),
        Example(
            f"{_V1} vllm serve m --use-replayssm --no-enable-prefix-caching {_DRAFTS}",
            model_config=NEMOTRON,
            versions="<0.32",
        ),
    ),
    good=(
        Example(
            f"{_V1} vllm serve m --use-replayssm --no-enable-prefix-caching",
            model_config=NEMOTRON,
        ),
        Example("vllm serve m", model_config=FALCON),
    ),
)
def of_model(config: ServeConfig) -> Iterator[Finding]:
    """Ask what the model's class provides for."""
    if not config[REPLAY]:
        return
    name, drafts = model_class(config), drafted_tokens(config)
    if not has_ability(config, "supports_replayssm"):
        text = f"--use-replayssm does not go with {name}"
        message = "--use-replayssm is not supported for architecture"
        if not since(config, "0.29"):
            message = "--use-replayssm is only supported for Nemotron-H models"
    elif drafts and not since(config, "0.29"):
        text = "--use-replayssm does not go with speculative decoding"
        message = "--use-replayssm does not support speculative decoding"
    elif drafts and not since(config, "0.32") and name not in RECOVERING:
        text = f"--use-replayssm with speculative decoding does not go with {name}"
        message = "RecoverSSM is only supported for Kimi-K3 KDA"
    else:
        return
    yield of_model.finding(text, location=config.place(REPLAY), fix=_drop(), engine_message=message)


@rule(
    id="mamba-replay-backend",
    title="These kernels cannot replay states",
    explanation="ReplaySSM runs on the Triton kernels, from 0.30 on on FlashInfer's as well, and "
    "with speculative decoding (from 0.32 on) on FlashInfer's only. RecoverSSM, which Kimi's "
    "models have with speculative decoding, runs on Triton's.",
    remedy="Choose the other `--mamba-backend`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    covers=("replayssm-backend", "replayssm-spec-backend", "recoverssm-backend"),
    bad=(
        Example(
            f"{_V1} vllm serve m --use-replayssm --mamba-backend cpu --no-enable-prefix-caching",
            model_config=NEMOTRON,
        ),
        Example(
            f"{_V1} vllm serve m --use-replayssm {_FLASHINFER} --no-enable-prefix-caching",
            model_config=NEMOTRON,
            versions="<0.30",
        ),
        Example(
            f"{_V1} vllm serve m --use-replayssm --no-enable-prefix-caching {_DRAFTS}",
            model_config=NEMOTRON,
            versions=">=0.32",
        ),
    ),
    good=(
        Example(
            f"{_V1} vllm serve m --use-replayssm {_FLASHINFER} --no-enable-prefix-caching",
            model_config=NEMOTRON,
            versions=">=0.30",
        ),
        Example(
            f"{_V1} vllm serve m --use-replayssm --no-enable-prefix-caching",
            model_config=NEMOTRON,
        ),
    ),
)
def kernels(config: ServeConfig) -> Iterator[Finding]:
    """Compare the kernels with what is replayed."""
    kind = replay(config)
    if kind is None:
        return
    wanted, message = {"TRITON", "FLASHINFER"}, "--use-replayssm requires --mamba-backend triton"
    if kind is Replay.RECOVERY:
        wanted = {"TRITON"}
        if since(config, "0.30"):
            message = "RecoverSSM requires --mamba-backend triton"
    elif kind is Replay.DRAFTS:
        wanted, message = {"FLASHINFER"}, "Mamba2 ReplaySSM speculative decoding requires"
    elif not since(config, "0.30"):
        wanted = {"TRITON"}
    if mamba_backend(config) in wanted:
        return
    names = " or ".join(sorted(name.lower() for name in wanted))
    first = min(name.lower() for name in wanted)
    fix = Fix(f"use --mamba-backend {first}", (SetFlag(BACKEND, first),), safe=False)
    yield kernels.finding(
        f"{kind} needs --mamba-backend {names}, and it is {mamba_backend(config).lower()}",
        location=config.place(REPLAY),
        fix=fix,
        engine_message=message,
    )


@rule(
    id="mamba-replay-prefixes",
    title="States that are replayed cannot be cached as prefixes this way",
    explanation="ReplaySSM on FlashInfer, and with speculative decoding, does not go with prefix "
    "caching, which models with attention and states have by default. Up to 0.31 "
    "`--mamba-cache-mode all` does not go with either. RecoverSSM with prefix caching needs Model "
    "Runner V2.",
    remedy="Add `--no-enable-prefix-caching`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    covers=("replayssm-spec-mode", "replayssm-flashinfer-align", "recoverssm-align-v2"),
    bad=(
        Example(
            f"vllm serve m --use-replayssm {_FLASHINFER}",
            model_config=NEMOTRON,
            versions=">=0.30",
        ),
        Example(
            f"vllm serve m --use-replayssm {_FLASHINFER} {_DRAFTS}",
            model_config=NEMOTRON,
            versions=">=0.32",
        ),
        Example(
            f"{_V1} vllm serve m --use-replayssm --mamba-cache-mode all --enable-prefix-caching",
            model_config=NEMOTRON,
            versions="<0.32",
        ),
    ),
    good=(
        Example(f"{_V1} vllm serve m --use-replayssm", model_config=NEMOTRON),
        Example(
            f"vllm serve m --use-replayssm {_FLASHINFER} --no-enable-prefix-caching",
            model_config=NEMOTRON,
            versions=">=0.30",
        ),
    ),
)
def prefixes(config: ServeConfig) -> Iterator[Finding]:
    """Compare how prefixes are cached."""
    kind = replay(config)
    if kind is None:
        return
    mode = cache_mode(config)
    if mode == "none":
        return
    problem = _prefix_problem(config, kind, mode)
    if problem is None:
        return
    text, message = problem
    edits: tuple[Edit, ...] = (SetFlag(_PREFIXES, False),)
    yield prefixes.finding(
        text,
        location=config.place(REPLAY),
        related=tuple(p for p in (config.place(CACHE_MODE),) if p is not None),
        fix=Fix("turn prefix caching off", edits, safe=False),
        engine_message=message,
        evidence={CACHE_MODE: mode},
    )


def _prefix_problem(config: ServeConfig, kind: Replay, mode: str) -> tuple[str, str] | None:
    if kind is Replay.DRAFTS:
        return (
            f"{kind} does not go with prefix caching",
            "FlashInfer ReplaySSM speculative decoding",
        )
    if kind is Replay.RECOVERY:
        if mode == "all":
            return f"{kind} does not go with --mamba-cache-mode all", "RecoverSSM supports only"
        if not _runs_on_v2(config):
            return f"{kind} with prefix caching needs Model Runner V2", "RecoverSSM with"
        return None
    if mode == "all":
        return (
            f"{kind} goes with --mamba-cache-mode align only, not all",
            "--use-replayssm supports prefix caching only in align mode",
        )
    if since(config, "0.30") and mamba_backend(config) == "FLASHINFER":
        return f"{kind} on FlashInfer does not go with prefix caching", "FlashInfer ReplaySSM does"
    return None


@rule(
    id="mamba-replay-buffer",
    title="The buffer of --use-replayssm has a wrong length",
    explanation="FlashInfer's kernel replays at most 16 tokens. With speculative decoding the "
    "buffer holds at least the drafted tokens and one more.",
    remedy="Set `--replayssm-buffer-len` accordingly.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    versions=">=0.32",
    covers=("replayssm-buffer-flashinfer", "replayssm-spec-buffer"),
    bad=(
        Example(
            f"vllm serve m --use-replayssm {_FLASHINFER} --no-enable-prefix-caching "
            "--replayssm-buffer-len 32",
            model_config=NEMOTRON,
        ),
        Example(
            f"vllm serve m --use-replayssm {_FLASHINFER} --no-enable-prefix-caching "
            f"--replayssm-buffer-len 2 {_DRAFTS}",
            model_config=NEMOTRON,
        ),
    ),
    good=(
        Example(
            f"vllm serve m --use-replayssm {_FLASHINFER} --no-enable-prefix-caching "
            "--replayssm-buffer-len 16",
            model_config=NEMOTRON,
        ),
        Example(
            f"{_V1} vllm serve m --use-replayssm --no-enable-prefix-caching "
            "--replayssm-buffer-len 32",
            model_config=NEMOTRON,
        ),
    ),
)
def buffer(config: ServeConfig) -> Iterator[Finding]:
    """Compare the length with both bounds."""
    kind, length = replay(config), config[_BUFFER]
    if kind is None or not isinstance(length, int):
        return
    if mamba_backend(config) == "FLASHINFER" and length > _BUFFER_LIMIT:
        yield buffer.finding(
            f"--replayssm-buffer-len {length} is above the {_BUFFER_LIMIT} tokens that FlashInfer "
            "replays",
            location=config.place(_BUFFER),
            fix=Fix(f"use {_BUFFER_LIMIT}", (SetFlag(_BUFFER, _BUFFER_LIMIT),), safe=False),
            engine_message="FlashInfer ReplaySSM requires --replayssm-buffer-len <= 16",
        )
    query = 1 + drafted_tokens(config)
    if kind is Replay.DRAFTS and length < query:
        yield buffer.finding(
            f"--replayssm-buffer-len {length} is below the {query} tokens that one request "
            "verifies",
            location=config.place(_BUFFER),
            fix=Fix(f"use {query}", (SetFlag(_BUFFER, query),), safe=False),
            engine_message="--replayssm-buffer-len >= 1 + num_speculative_tokens",
        )


@rule(
    id="mamba-replay-runner",
    title="ReplaySSM on Triton needs Model Runner V1",
    explanation="Model Runner V2, the default, replays states on FlashInfer's kernels only.",
    remedy="Add `--mamba-backend flashinfer`, or set `VLLM_USE_V2_MODEL_RUNNER=0`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    versions=">=0.30",
    covers=("replayssm-triton-v2",),
    bad=(
        Example(
            "vllm serve m --use-replayssm --no-enable-prefix-caching",
            model_config=NEMOTRON,
            gpu="H100",
        ),
    ),
    good=(
        Example(
            f"vllm serve m --use-replayssm {_FLASHINFER} --no-enable-prefix-caching",
            model_config=NEMOTRON,
            gpu="H100",
        ),
        Example(
            f"{_V1} vllm serve m --use-replayssm --no-enable-prefix-caching",
            model_config=NEMOTRON,
            gpu="H100",
        ),
    ),
)
def runner(config: ServeConfig) -> Iterator[Finding]:
    """Ask for the runner where nothing else is refused before."""
    if replay(config) is not Replay.PLAIN or mamba_backend(config) != "TRITON":
        return
    if cache_mode(config) != "all" and _runs_on_v2(config):
        yield runner.finding(
            "ReplaySSM on Triton needs Model Runner V1, and vLLM takes V2",
            location=config.place(REPLAY),
            fix=Fix(
                "use --mamba-backend flashinfer", (SetFlag(BACKEND, "flashinfer"),), safe=False
            ),
            engine_message="Triton ReplaySSM requires Model Runner V1",
        )


@rule(
    id="mamba-replay-connector",
    title="States that are replayed cannot be moved by a KV connector",
    explanation="The buffer is not part of what connectors transfer or offload. From 0.33 on "
    "RecoverSSM, whose buffer is apart, is spared.",
    remedy="Drop `--use-replayssm`, or the connector.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    covers=("replayssm-connector",),
    bad=(
        Example(
            f"{_V1} vllm serve m --use-replayssm --no-enable-prefix-caching --kv-transfer-config "
            """'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'""",
            model_config=NEMOTRON,
        ),
        Example(
            f"{_V1} vllm serve m --use-replayssm --kv-offloading-size 8", model_config=NEMOTRON
        ),
    ),
    good=(
        Example(
            "vllm serve m --kv-transfer-config "
            """'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'""",
            model_config=NEMOTRON,
        ),
    ),
)
def connector(config: ServeConfig) -> Iterator[Finding]:
    """Look for a connector that does something."""
    if not config[REPLAY]:
        return
    transfer = kv_transfer(config)
    if transfer is None or transfer.connector is None or transfer.role is None:
        return
    if since(config, "0.33") and replay(config) is Replay.RECOVERY:
        return
    yield connector.finding(
        f"--use-replayssm does not go with {transfer.connector}",
        location=config.place(OFFLOADING if transfer.offloads else TRANSFER),
        fix=_drop(),
        engine_message="--use-replayssm is incompatible with KV connectors",
    )


@rule(
    id="mamba-recover-conflicts",
    title="RecoverSSM does not go with stochastic rounding or pipeline stages",
    explanation="With `--use-replayssm` and speculative decoding Kimi's models recover the state "
    "after each step, in bfloat16 or float32 and within one pipeline stage.",
    remedy="Drop the option, or `--use-replayssm`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    versions=">=0.29",
    covers=("recoverssm-rounding", "recoverssm-pp"),
    bad=(
        Example(
            f"vllm serve m --trust-remote-code --use-replayssm -pp 2 {_DRAFTS} "
            "--no-enable-prefix-caching",
            model_config=KIMI,
        ),
        Example(
            f"vllm serve m --trust-remote-code --use-replayssm {_DRAFTS} "
            "--no-enable-prefix-caching --enable-mamba-cache-stochastic-rounding "
            "--mamba-ssm-cache-dtype float16",
            model_config=KIMI,
        ),
    ),
    good=(
        Example(
            f"vllm serve m --trust-remote-code --use-replayssm {_DRAFTS} "
            "--no-enable-prefix-caching",
            model_config=KIMI,
        ),
    ),
)
def recovery(config: ServeConfig) -> Iterator[Finding]:
    """Look for both."""
    if replay(config) is not Replay.RECOVERY:
        return
    if config[_ROUNDING]:
        yield recovery.finding(
            "RecoverSSM keeps states in bfloat16 or float32, and stochastic rounding is for "
            "float16",
            location=config.place(_ROUNDING),
            fix=Fix("drop the rounding", (RemoveFlag(_ROUNDING),), safe=False),
            engine_message="RecoverSSM supports bfloat16/float32",
        )
    if size(config, PP) > 1:
        yield recovery.finding(
            f"RecoverSSM does not go with {size(config, PP)} pipeline stages",
            location=config.place(PP),
            fix=_drop(),
            engine_message="RecoverSSM currently requires pipeline_parallel_size=1",
        )
