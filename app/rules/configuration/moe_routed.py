"""Returning with each answer which experts computed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from app.rules.configuration.moe_experts import AREA
from app.rules.configuration.parallel_models import DENSE, ENCODER, EXPERTS
from app.rules.declaration import Example
from app.rules.derived.model import is_moe, is_pooling
from app.rules.derived.parallel import DCP, PCP, PP, since, size
from app.rules.derived.scheduler import enable_prefix_caching
from app.rules.registry import rule
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import RUNNER_VARIABLE, Moment
from app.rules.speculation import speculation_of
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, UnsetEnvironment

_ROUTED: Final = "enable_return_routed_experts"
_INCOMPATIBLE: Final = "--enable-return-routed-experts is incompatible with "
_TRANSFERS: Final = (
    *("NixlConnector", "NixlPullConnector", "NixlPushConnector"),
    *("MoRIIOConnector", "MooncakeConnector"),
)
_WITHOUT_ROUTED: Final = Fix(
    "do not return routed experts",
    (RemoveFlag(_ROUTED), RemoveFlag(f"aux_output_config.{_ROUTED}")),
    safe=False,
)


@rule(
    id="moe-routed-experts",
    title="Returning the routed experts is not possible here",
    explanation="`--enable-return-routed-experts` excludes pipeline and context parallelism. Up to "
    "0.30 any KV connector is refused too; from 0.31 on those that move a request between "
    "servers, and it needs a generating model with experts, Model Runner V2, prefix caching and "
    "no adaptive verification.",
    remedy="Drop `--enable-return-routed-experts`, or what the message names.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._verify_aux_output_compatibility",
    bad=(
        Example(f"vllm serve m -pp 2 --{_ROUTED.replace('_', '-')}", model_config=EXPERTS),
        Example("vllm serve m -pcp 2 --enable-return-routed-experts", model_config=EXPERTS),
        Example(
            "vllm serve m --enable-return-routed-experts", model_config=DENSE, versions=">=0.31"
        ),
        Example(
            "vllm serve m --enable-return-routed-experts --no-enable-prefix-caching",
            model_config=EXPERTS,
            versions=">=0.31",
        ),
        Example(
            f"{RUNNER_VARIABLE}=0 vllm serve m --enable-return-routed-experts",
            model_config=EXPERTS,
            versions=">=0.31",
        ),
        Example(
            "vllm serve m --enable-return-routed-experts --kv-transfer-config "
            """'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'""",
            model_config=EXPERTS,
        ),
        Example(
            "vllm serve m --enable-return-routed-experts", model_config=ENCODER, versions=">=0.31"
        ),
    ),
    good=(
        Example("vllm serve m --enable-return-routed-experts", model_config=EXPERTS),
        Example(
            "vllm serve m --enable-return-routed-experts --kv-transfer-config "
            """'{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}'""",
            model_config=EXPERTS,
            versions=">=0.31",
        ),
        Example(
            "vllm serve m --enable-return-routed-experts", model_config=DENSE, versions="<0.31"
        ),
    ),
    covers=(
        *("routed-experts-v2", "routed-experts-generate", "routed-experts-moe"),
        *("routed-experts-prefix", "routed-experts-adaptive", "routed-experts-pp"),
        *("routed-experts-cp", "routed-experts-pd"),
    ),
)
def routed_experts(config: ServeConfig) -> Iterator[Finding]:
    """Collect what speaks against it, what needs no model first."""
    if not config[_ROUTED] and not config[f"aux_output_config.{_ROUTED}"]:
        return
    found = _against_routed(config)
    if found is None:
        return
    message, engine, fix = found
    yield routed_experts.finding(
        f"--enable-return-routed-experts {message}",
        location=config.place(_ROUTED) or config.place("aux_output_config"),
        fix=fix or _WITHOUT_ROUTED,
        engine_message=engine,
    )


def _against_routed(config: ServeConfig) -> tuple[str, str, Fix | None] | None:
    text = _INCOMPATIBLE
    if size(config, PP) > 1:
        return (
            f"does not go with --pipeline-parallel-size {size(config, PP)}",
            f"{text}pipeline parallelism (PP > 1).",
            None,
        )
    if size(config, DCP) > 1 or size(config, PCP) > 1:
        return "does not go with context parallelism", f"{text}context parallelism (DCP", None
    connector = _refused_connector(config)
    newer = since(config, "0.31")
    if connector is not None:
        engine = f"{text}{connector if newer else 'KV connectors'}"
        return f"does not go with the KV connector {connector}", engine, None
    return _against_routed_since_031(config) if newer else None


def _refused_connector(config: ServeConfig) -> str | None:
    transfer = config["kv_transfer_config"]
    if not isinstance(transfer, Mapping):
        return None
    name = config["kv_transfer_config.kv_connector"]
    if not since(config, "0.31"):
        has_role = config["kv_transfer_config.kv_role"] is not None
        return str(name) if name is not None and has_role else None
    children = config["kv_transfer_config.kv_connector_extra_config.connectors"]
    names = [name]
    if name == "MultiConnector" and isinstance(children, list):
        names += [c.get("kv_connector") for c in children if isinstance(c, Mapping)]
    return next((wanted for wanted in _TRANSFERS if wanted in names), None)


def _against_routed_since_031(config: ServeConfig) -> tuple[str, str, Fix | None] | None:
    speculation = speculation_of(config)
    if speculation is not None and speculation.value("enable_adaptive_verification"):
        return (
            "does not go with adaptive verification",
            f"{_INCOMPATIBLE}adaptive speculative verification.",
            None,
        )
    decision = decide_runner(config, Moment.LAST_CHECK)
    if decision.version is Runner.V1:
        unset = Fix(f"unset {RUNNER_VARIABLE}", (UnsetEnvironment(RUNNER_VARIABLE),), safe=False)
        return (
            f"needs Model Runner V2, but {decision.because}",
            "AuxOutput Connector requires Model Runner V2; set VLLM_USE_V2_MODEL_RUNNER=1.",
            unset if config.variable(RUNNER_VARIABLE) is not None else None,
        )
    if is_pooling(config):
        return (
            "needs a model that generates",
            "AuxOutput Connector only supports generate runners.",
            None,
        )
    if not is_moe(config):
        return (
            "needs a model with experts",
            "AuxOutput Connector only supports MoE models.",
            None,
        )
    if not enable_prefix_caching(config):
        return (
            "needs prefix caching",
            "AuxOutput Connector requires prefix caching.",
            None,
        )
    return None
