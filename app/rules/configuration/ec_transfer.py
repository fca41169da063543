"""Moving encoded images and audio between instances, and what manages their cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from app.rules.configuration.example_models import VISION
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.model import is_multimodal
from app.rules.derived.multimodal import ENCODER_TRANSFER, encodes_only
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "ec-transfer"
_MANAGER: Final = "ec_manager_config"
_PREFIX: Final = "enable_prefix_caching"


def transfer(connector: str, role: str = "ec_producer") -> str:
    """Write the option of an example."""
    named = f'"ec_connector": "{connector}"' + (f', "ec_role": "{role}"' if role else "")
    return f"--ec-transfer-config '{{{named}}}'"


_PRODUCER: Final = transfer("ECExampleConnector")
_NO_ROLE: Final = transfer("ECExampleConnector", "")
_UNKNOWN: Final = transfer("ECRedisConnector")


@rule(
    id="ec-transfer-role-missing",
    title="An encoder-cache connector has no role",
    explanation="An instance produces encoded images, consumes them, or does both; there is no "
    "default.",
    remedy="Add `ec_role`: `ec_producer`, `ec_consumer` or `ec_both`.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/ec_transfer.py::ECTransferConfig.__post_init__",
    bad=(Example(f"vllm serve m {_NO_ROLE}", model_config=VISION),),
    good=(Example(f"vllm serve m {_PRODUCER}", model_config=VISION),),
    covers=("ec-role-missing",),
)
def role_missing(config: ServeConfig) -> Iterator[Finding]:
    """Look for a connector without a role."""
    if not isinstance(config[ENCODER_TRANSFER], Mapping):
        return
    named = config[f"{ENCODER_TRANSFER}.ec_connector"]
    if named is not None and config[f"{ENCODER_TRANSFER}.ec_role"] is None:
        yield role_missing.finding(
            f"--ec-transfer-config names {named} without ec_role",
            location=config.place(ENCODER_TRANSFER),
            fix=Fix(
                "set ec_role to ec_both",
                (SetFlag(f"{ENCODER_TRANSFER}.ec_role", "ec_both"),),
                safe=False,
            ),
            engine_message="Please specify ec_role when ec_connector is set, supported roles are",
        )


@rule(
    id="ec-transfer-connector-unknown",
    title="This vLLM has no such encoder-cache connector",
    explanation="The name is looked up when the engine starts: what is none of vLLM's connectors "
    "and has no `ec_connector_module_path` fails there, and so does a configuration without "
    "`ec_connector`.",
    remedy="Take a registered name, or give the module path.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/distributed/ec_transfer/ec_connector/factory.py::"
    "ECConnectorFactory.get_connector_class",
    bad=(Example(f"vllm serve m {_UNKNOWN}", model_config=VISION),),
    good=(Example(f"vllm serve m {_PRODUCER}", model_config=VISION),),
    covers=("ec-connector-unknown",),
)
def connector_unknown(config: ServeConfig) -> Iterator[Finding]:
    """Look the name up."""
    if not isinstance(config[ENCODER_TRANSFER], Mapping):
        return
    named = config[f"{ENCODER_TRANSFER}.ec_connector"]
    known = config.catalogue.registries.get("ec_connectors")
    if known is None or (named is not None and named in known):
        return
    if named is not None and config[f"{ENCODER_TRANSFER}.ec_connector_module_path"] is not None:
        return
    yield connector_unknown.finding(
        "--ec-transfer-config has no ec_connector; the engine will not start"
        if named is None
        else f"{named} is none of {', '.join(known)}; the engine will not start",
        location=config.place(ENCODER_TRANSFER),
        fix=Fix("drop --ec-transfer-config", (RemoveFlag(ENCODER_TRANSFER),), safe=False),
        engine_message="EC connect must not be None"
        if named is None
        else f"Unsupported connector type: {named}",
    )


@rule(
    id="ec-transfer-text-model",
    title="An encoder instance of a model that takes text alone",
    explanation="A pure producer only runs the encoder of images and audio, which a text model "
    "does not have.",
    remedy="Serve the multimodal model there.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig._resolve_mm_encoder_only",
    versions=">=0.29",
    bad=(Example(f"vllm serve m {_PRODUCER}", model_config=DENSE),),
    good=(
        Example(f"vllm serve m {_PRODUCER}", model_config=VISION),
        Example(f"vllm serve m {transfer('ECExampleConnector', 'ec_both')}", model_config=DENSE),
    ),
    covers=("ec-producer-text-model",),
)
def text_model(config: ServeConfig) -> Iterator[Finding]:
    """Ask the model class."""
    if encodes_only(config) and not is_multimodal(config):
        yield text_model.finding(
            "ec_role is ec_producer, and the model has no encoder of images or audio",
            location=config.place(ENCODER_TRANSFER),
            fix=Fix("drop --ec-transfer-config", (RemoveFlag(ENCODER_TRANSFER),), safe=False),
            engine_message="An EC producer-only instance requires a multimodal model.",
        )


@rule(
    id="ec-transfer-prefix-caching",
    title="An encoder instance caches no prefixes",
    explanation="It runs no language model and has no KV cache, so vLLM switches prefix caching "
    "off.",
    remedy="Leave `--enable-prefix-caching` out.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.__post_init__",
    versions=">=0.29",
    bad=(Example(f"vllm serve m --enable-prefix-caching {_PRODUCER}", model_config=VISION),),
    good=(
        Example(f"vllm serve m {_PRODUCER}", model_config=VISION),
        Example("vllm serve m --enable-prefix-caching", model_config=VISION),
    ),
    covers=("encoder-only-prefix-off",),
)
def prefix_caching(config: ServeConfig) -> Iterator[Finding]:
    """Look for what was asked for."""
    alone = encodes_only(config) or config["mm_encoder_only"]
    if config[_PREFIX] is True and alone and is_multimodal(config):
        yield prefix_caching.finding(
            "prefix caching will be off because this instance only encodes",
            location=config.place(_PREFIX),
            fix=Fix("drop --enable-prefix-caching", (RemoveFlag(_PREFIX),), safe=True),
            evidence={"asked": True, "effective": False, "dest": _PREFIX},
        )


@rule(
    id="ec-transfer-manager-class",
    title="Settings of an encoder-cache manager that is not named",
    explanation="`manager_config` is read by the class in `encoder_cache_manager_cls` and by "
    "nothing else.",
    remedy="Name the class, or drop the settings.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/ec_manager_config.py::EncoderCacheManagerConfig.__post_init__",
    bad=(Example("""vllm serve m --ec-manager-config '{"manager_config": {"size": 4}}'"""),),
    good=(
        Example(
            "vllm serve m --ec-manager-config "
            """'{"encoder_cache_manager_cls": "a.B", "manager_config": {"size": 4}}'"""
        ),
        Example("vllm serve m"),
    ),
    covers=("ec-manager-config-without-class",),
)
def manager_class(config: ServeConfig) -> Iterator[Finding]:
    """Look for settings without a class."""
    if not isinstance(config[_MANAGER], Mapping) or not config[f"{_MANAGER}.manager_config"]:
        return
    if config[f"{_MANAGER}.encoder_cache_manager_cls"] is None:
        yield manager_class.finding(
            "--ec-manager-config has manager_config without encoder_cache_manager_cls",
            location=config.place(_MANAGER),
            fix=Fix("drop manager_config", (RemoveFlag(f"{_MANAGER}.manager_config"),), safe=False),
            engine_message="manager_config requires encoder_cache_manager_cls to be set.",
        )
