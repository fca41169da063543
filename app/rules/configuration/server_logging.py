"""Logging, and variables of the platform that contradict each other."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from packaging.version import Version

from app.rules.declaration import Example
from app.rules.derived.hardware import machine_of
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetEnvironment, UnsetEnvironment

AREA: Final = "logging"
_SOURCE: Final = "vllm/logger.py::_configure_vllm_root_logger"
_CONFIGURE: Final = "VLLM_CONFIGURE_LOGGING"
_FILE: Final = "VLLM_LOGGING_CONFIG_PATH"
_LEVEL: Final = "VLLM_LOGGING_LEVEL"
_TRACE: Final = "VLLM_TRACE_FUNCTION"
_HIP: Final = "HIP_VISIBLE_DEVICES"
_CUDA: Final = "CUDA_VISIBLE_DEVICES"
_V0_31: Final = Version("0.31.0.dev0")


def _is_off(config: ServeConfig) -> bool:
    variable = config.variable(_CONFIGURE)
    return variable is not None and variable.value.strip() == "0"


@rule(
    id="logging-file-disabled",
    title="A logging configuration that is switched off",
    explanation=f"`{_CONFIGURE}=0` (from 0.31 also `configure_logging: false`) leaves Python's "
    "logging alone; a configuration file says the opposite, and vLLM refuses both together.",
    remedy="Drop the file, or leave logging on.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    bad=(
        Example(f"{_CONFIGURE}=0 {_FILE}=/etc/log.json vllm serve m"),
        Example(
            "vllm serve m --logging-config "
            """'{"configure_logging": false, "pylogging_config_file": "/etc/log.json"}'""",
            versions=">=0.31",
        ),
    ),
    good=(
        Example(f"{_CONFIGURE}=0 vllm serve m"),
        Example(f"{_CONFIGURE}=1 {_FILE}=/etc/log.json vllm serve m"),
    ),
    covers=("log-file-but-disabled",),
)
def file_disabled(config: ServeConfig) -> Iterator[Finding]:
    """Look at the variables, then at the option."""
    file = config.variable(_FILE)
    if _is_off(config) and file is not None and file.value:
        yield file_disabled.finding(
            f"{_CONFIGURE}=0 switches logging off, and {_FILE}={file.value} configures it",
            location=file.location,
            fix=Fix(f"unset {_FILE}", (UnsetEnvironment(_FILE),), safe=False),
        )
        return
    if config.catalogue.version < _V0_31:
        return
    enabled, path = config["logging_config.configure_logging"], config["log_config_file"]
    dest = "log_config_file"
    if not path:
        dest, path = "logging_config.pylogging_config_file", None
        path = config[dest] or (file.value if file is not None else None)
    off = enabled is False or (enabled is None and _is_off(config))
    if off and path:
        yield file_disabled.finding(
            f"logging is switched off, and {path} configures it",
            location=config.place(dest) or config.place("logging_config"),
            fix=Fix("drop the file", (RemoveFlag(dest),), safe=False),
            engine_message="Logging configuration is disabled, but a Python logging config file "
            "was given.",
        )


@rule(
    id="logging-level",
    title=f"{_LEVEL} names no level",
    explanation="vLLM sets its logger up while it is imported, and fails there with a level that "
    "Python's logging does not have.",
    remedy="Use DEBUG, INFO, WARNING, ERROR or CRITICAL.",
    severity=Severity.ERROR,
    area=AREA,
    source=_SOURCE,
    bad=(Example(f"{_LEVEL}=verbose vllm serve m"),),
    good=(
        Example(f"{_LEVEL}=debug vllm serve m"),
        Example(f"{_CONFIGURE}=0 {_LEVEL}=verbose vllm serve m", note="not read", versions="<0.31"),
    ),
    covers=("log-level-env-unknown",),
)
def level(config: ServeConfig) -> Iterator[Finding]:
    """Look the level up."""
    variable = config.variable(_LEVEL)
    if variable is None or _is_off(config) or config.variable(_FILE) is not None:
        return
    asked = variable.value.upper()
    if asked not in logging.getLevelNamesMapping():
        yield level.finding(
            f"{_LEVEL}={variable.value} is no level of Python's logging",
            location=variable.location,
            fix=Fix(f"set {_LEVEL}=INFO", (SetEnvironment(_LEVEL, "INFO"),), safe=False),
            engine_message="Unable to configure handler 'vllm'",
        )


@rule(
    id="logging-trace-function",
    title="Every function call is logged",
    explanation=f"`{_TRACE}` is for finding hangs: it slows vLLM down many times and fills disks.",
    remedy=f"Unset `{_TRACE}`.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/logger.py::enable_trace_function_call",
    bad=(Example(f"{_TRACE}=1 vllm serve m"),),
    good=(Example(f"{_TRACE}=0 vllm serve m"),),
    covers=("log-trace-function",),
)
def trace_function(config: ServeConfig) -> Iterator[Finding]:
    """Look at the variable."""
    variable = config.variable(_TRACE)
    if variable is not None and variable.value.strip() not in {"", "0"}:
        yield trace_function.finding(
            f"{_TRACE}={variable.value} logs every function call",
            location=variable.location,
            fix=Fix(f"unset {_TRACE}", (UnsetEnvironment(_TRACE),), safe=False),
        )


@rule(
    id="platform-visible-devices",
    title="Two variables name different GPUs",
    explanation="On ROCm `HIP_VISIBLE_DEVICES` and `CUDA_VISIBLE_DEVICES` mean the same; vLLM "
    "refuses to be imported where both are set and differ.",
    remedy="Set one of them.",
    severity=Severity.ERROR,
    area="platform",
    source="vllm/platforms/rocm.py::_sync_hip_cuda_env_vars",
    bad=(Example(f"{_HIP}=0 {_CUDA}=1 vllm serve m", gpu="AMD Instinct MI300X"),),
    good=(
        Example(f"{_HIP}=0 {_CUDA}=0 vllm serve m", gpu="AMD Instinct MI300X"),
        Example(f"{_HIP}=0 {_CUDA}=1 vllm serve m", gpu="NVIDIA H100"),
    ),
    covers=("rocm-visible-mismatch",),
)
def visible_devices(config: ServeConfig) -> Iterator[Finding]:
    """Compare the two."""
    hip, cuda = config.variable(_HIP), config.variable(_CUDA)
    if hip is None or cuda is None or not hip.value or not cuda.value or hip.value == cuda.value:
        return
    if machine_of(config).is_rocm:
        yield visible_devices.finding(
            f"{_HIP}={hip.value} and {_CUDA}={cuda.value} differ",
            location=cuda.location,
            related=(hip.location,),
            fix=Fix(f"unset {_CUDA}", (UnsetEnvironment(_CUDA),), safe=False),
            engine_message="Inconsistent GPU visibility env vars:",
        )
