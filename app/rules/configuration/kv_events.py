"""Events about blocks of the KV cache (`--kv-events-config`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.derived.scheduler import enable_prefix_caching
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "kv-events"
EVENTS: Final = "kv_events_config"
_ENABLED: Final = f"{EVENTS}.enable_kv_cache_events"
_PREFIX: Final = "enable_prefix_caching"
_SOURCE: Final = "vllm/config/vllm.py::VllmConfig.__post_init__"


def _command(keys: str, options: str = "") -> str:
    return f"vllm serve m {options}{' ' if options else ''}--kv-events-config '{{{keys}}}'"


_ON: Final = '"enable_kv_cache_events": true'


@rule(
    id="kv-events-without-prefix-caching",
    title="KV events need prefix caching",
    explanation="Events tell which blocks are stored for reuse and removed. Without prefix caching "
    "none are, so nothing is published.",
    remedy="Drop `--no-enable-prefix-caching`, or the events.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    bad=(Example(_command(_ON, "--no-enable-prefix-caching")),),
    good=(
        Example(_command(_ON, "--enable-prefix-caching")),
        Example(_command('"publisher": "null"', "--no-enable-prefix-caching")),
    ),
    covers=("kv-events-without-prefix",),
)
def without_prefix_caching(config: ServeConfig) -> Iterator[Finding]:
    """Compare with prefix caching as vLLM settles it."""
    if config[EVENTS] is None or config[_ENABLED] is not True or enable_prefix_caching(config):
        return
    given = config[_PREFIX] is False
    why = "--no-enable-prefix-caching" if given else "it is off for this kind of model"
    yield without_prefix_caching.finding(
        f"KV events are on but none will come, because prefix caching is off ({why})",
        location=config.place(EVENTS),
        related=tuple(p for p in (config.place(_PREFIX),) if p is not None),
        fix=Fix(
            "switch prefix caching on" if given else "drop --kv-events-config",
            (SetFlag(_PREFIX, True) if given else RemoveFlag(EVENTS),),
            safe=False,
        ),
        engine_message="KV cache events are on, but prefix caching is not enabled.",
        evidence={"asked": True, "effective": False, "dest": _ENABLED},
    )


@rule(
    id="kv-events-publisher-off",
    title="A publisher is set while KV events are off",
    explanation="`publisher` says how events leave; `enable_kv_cache_events` says whether there "
    "are any, and is off by default. vLLM starts and publishes nothing. With events on the "
    "publisher is `zmq` by itself.",
    remedy="Set `enable_kv_cache_events`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_SOURCE,
    bad=(Example(_command('"publisher": "zmq"')),),
    good=(
        Example(_command(f'"publisher": "zmq", {_ON}')),
        Example(_command('"publisher": "null"')),
        Example(_command('"topic": "kv"')),
    ),
    covers=("kv-events-publisher-off",),
)
def publisher_off(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two keys."""
    if config[EVENTS] is None or config[_ENABLED]:
        return
    publisher = config[f"{EVENTS}.publisher"]
    if publisher in (None, "null"):
        return
    yield publisher_off.finding(
        f"--kv-events-config asks for the publisher {publisher}, but nothing will be published, "
        "because enable_kv_cache_events is off",
        location=config.place(EVENTS),
        fix=Fix("switch events on", (SetFlag(_ENABLED, True),), safe=False),
        engine_message="KV cache events are disabled, but the scheduler is configured to publish "
        "them.",
        evidence={"asked": publisher, "effective": None, "dest": f"{EVENTS}.publisher"},
    )
