"""Publishing what happens in the KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from app.rules.configuration.example_models import ENCODER
from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.scheduler import enable_prefix_caching
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "kv-events"
EVENTS: Final = "kv_events_config"
_ENABLED: Final = f"{EVENTS}.enable_kv_cache_events"
_PUBLISHER: Final = f"{EVENTS}.publisher"
_POST_INIT: Final = "vllm/config/vllm.py::VllmConfig.__post_init__"
_ON: Final = """--kv-events-config '{"enable_kv_cache_events": true}'"""


@rule(
    id="kv-events-without-prefix-caching",
    title="KV events tell nothing without prefix caching",
    explanation="Events say which blocks of prefixes are kept or dropped. With prefix caching off "
    "there are none; vLLM warns.",
    remedy="Add `--enable-prefix-caching`, or drop `--kv-events-config`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    bad=(
        Example(f"vllm serve m --no-enable-prefix-caching {_ON}", model_config=DENSE),
        Example(f"vllm serve m {_ON}", model_config=ENCODER),
    ),
    good=(
        Example(f"vllm serve m {_ON}", model_config=DENSE),
        Example("vllm serve m --no-enable-prefix-caching", model_config=DENSE),
    ),
    covers=("kv-events-without-prefix",),
)
def without_prefix_caching(config: ServeConfig) -> Iterator[Finding]:
    """Look for events, then for the cache."""
    if not isinstance(config[EVENTS], Mapping) or config[_ENABLED] is not True:
        return
    if not enable_prefix_caching(config):
        yield without_prefix_caching.finding(
            "KV events are on and prefix caching is off, so there is nothing to tell",
            location=config.place(EVENTS),
            related=tuple(p for p in (config.place("enable_prefix_caching"),) if p is not None),
            fix=Fix(
                "add --enable-prefix-caching",
                (SetFlag("enable_prefix_caching", value=True),),
                safe=False,
            ),
        )


@rule(
    id="kv-events-off",
    title="A publisher of KV events that are off",
    explanation="A publisher is set and `enable_kv_cache_events` is not, so nothing is published; "
    "vLLM warns.",
    remedy="Set `enable_kv_cache_events`, or drop the publisher.",
    severity=Severity.WARNING,
    area=AREA,
    source=_POST_INIT,
    bad=(Example("""vllm serve m --kv-events-config '{"publisher": "zmq"}'"""),),
    good=(
        Example(
            "vllm serve m --kv-events-config "
            """'{"publisher": "zmq", "enable_kv_cache_events": true}'"""
        ),
        Example("""vllm serve m --kv-events-config '{"publisher": "null"}'"""),
    ),
    covers=("kv-events-publisher-off",),
)
def events_off(config: ServeConfig) -> Iterator[Finding]:
    """Look for a publisher without events."""
    if not isinstance(config[EVENTS], Mapping) or config[_ENABLED]:
        return
    publisher = config[_PUBLISHER]
    if isinstance(publisher, str) and publisher != "null":
        yield events_off.finding(
            f"publisher {publisher} publishes nothing, because enable_kv_cache_events is off",
            location=config.place(EVENTS),
            fix=Fix("drop --kv-events-config", (RemoveFlag(EVENTS),), safe=False),
        )
