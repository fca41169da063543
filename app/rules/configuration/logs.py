"""How vLLM logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from app.rules.declaration import Example
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, UnsetEnvironment

AREA: Final = "logging"
_ROOT: Final = "vllm/logger.py::_configure_vllm_root_logger"
_LEVEL: Final = "VLLM_LOGGING_LEVEL"
_TRACE: Final = "VLLM_TRACE_FUNCTION"
_FILE: Final = "VLLM_LOGGING_CONFIG_PATH"
_CONFIGURE: Final = "VLLM_CONFIGURE_LOGGING"
_KNOWN: Final = frozenset(logging.getLevelNamesMapping())


@rule(
    id="logging-file-unused",
    title="A logging file is given while logging is not configured",
    explanation="With `VLLM_CONFIGURE_LOGGING=0` vLLM leaves logging alone and refuses a file "
    "that would configure it; that happens while it is imported.",
    remedy=f"Drop `{_FILE}`, or set `VLLM_CONFIGURE_LOGGING=1`.",
    severity=Severity.ERROR,
    area=AREA,
    source=_ROOT,
    versions=">=0.28",
    covers=("log-file-but-disabled",),
    bad=(Example(f"{_CONFIGURE}=0 {_FILE}=/etc/logging.json vllm serve m"),),
    good=(Example(f"{_CONFIGURE}=0 vllm serve m"),),
)
def file_unused(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two variables."""
    file, configure = config.variable(_FILE), config.variable(_CONFIGURE)
    if file is None or not file.value or configure is None or configure.value.strip() != "0":
        return
    yield file_unused.finding(
        f"{_FILE} is set while {_CONFIGURE}=0 says that vLLM does not configure logging",
        location=file.location,
        fix=Fix(f"unset {_FILE}", (UnsetEnvironment(_FILE),), safe=False),
        engine_message="Logging configuration is disabled",
    )


@rule(
    id="logging-level-unknown",
    title="A level that Python's logging does not know",
    explanation="vLLM hands `VLLM_LOGGING_LEVEL` to Python's logging when it is imported, which "
    "refuses a name that it does not know.",
    remedy="Take one of DEBUG, INFO, WARNING, ERROR and CRITICAL.",
    severity=Severity.ERROR,
    area=AREA,
    source=_ROOT,
    versions=">=0.28",
    covers=("log-level-env-unknown",),
    bad=(Example(f"{_LEVEL}=LOUD vllm serve m"),),
    good=(
        Example(f"{_LEVEL}=DEBUG vllm serve m"),
        Example(f"{_LEVEL}=info vllm serve m"),
    ),
)
def level_unknown(config: ServeConfig) -> Iterator[Finding]:
    """Look the name up; vLLM reads it in capitals."""
    variable, configure = config.variable(_LEVEL), config.variable(_CONFIGURE)
    if variable is None or variable.value.upper() in _KNOWN:
        return
    if configure is not None and configure.value.strip() == "0":
        return
    file = config.variable(_FILE)
    if file is not None and file.value:
        return  # which replaces all that the level would be put into
    yield level_unknown.finding(
        f"{_LEVEL}={variable.value} is no level of Python's logging",
        location=variable.location,
        fix=Fix(f"unset {_LEVEL}", (UnsetEnvironment(_LEVEL),), safe=False),
        engine_message="Unknown level",
    )


@rule(
    id="logging-traced-calls",
    title="Every call of a Python function is logged",
    explanation="`VLLM_TRACE_FUNCTION` writes a line for each call, which slows vLLM down by "
    "orders of magnitude and fills the disk. It is meant for debugging hangs.",
    remedy=f"Unset `{_TRACE}`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/logger.py::enable_trace_function_call",
    versions=">=0.28",
    covers=("log-trace-function",),
    bad=(Example(f"{_TRACE}=1 vllm serve m"),),
    good=(Example(f"{_TRACE}=0 vllm serve m"), Example("vllm serve m")),
)
def traced_calls(config: ServeConfig) -> Iterator[Finding]:
    """Read the number."""
    variable = config.variable(_TRACE)
    if variable is None or not variable.value.strip().isdigit() or int(variable.value) == 0:
        return
    yield traced_calls.finding(
        f"{_TRACE}={variable.value} logs every call of a Python function",
        location=variable.location,
        fix=Fix(f"unset {_TRACE}", (UnsetEnvironment(_TRACE),), safe=True),
    )


@rule(
    id="logging-file-option",
    title="`--log-config-file` is on its way out",
    explanation="It does what `--logging-config.pylogging_config_file` does, and is to be removed.",
    remedy="Write `--logging-config.pylogging_config_file FILE`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/engine/arg_utils.py::DeprecatedLogConfigFileAction.__call__",
    versions=">=0.31",
    covers=("log-config-file-deprecated",),
    bad=(Example("vllm serve m --log-config-file ''"),),
    good=(Example("vllm serve m"),),
)
def file_option(config: ServeConfig) -> Iterator[Finding]:
    """Look for the option."""
    if config.given("log_config_file"):
        yield file_option.finding(
            "--log-config-file is deprecated; write --logging-config.pylogging_config_file",
            location=config.place("log_config_file"),
        )
