"""Profilers and their options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.rules.configuration.parallel_models import DENSE
from app.rules.declaration import Example
from app.rules.derived.compilation import optimization_level
from app.rules.derived.cuda_graphs import asked_graphs, graph_mode
from app.rules.derived.hardware import machine_of
from app.rules.derived.parallel import since
from app.rules.registry import rule
from app.rules.runner import Runner, decide_runner
from app.rules.runner_features import Moment
from app.serve_config.serve_config import Abstain, ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "profiler"
PROFILER: Final = "profiler_config"
_KIND: Final = f"{PROFILER}.profiler"
_CHECK: Final = "vllm/config/profiler.py::ProfilerConfig._validate_profiler_config"
_ENGINE: Final = "vllm/config/vllm.py::VllmConfig"
# What a Proton option is where nobody gives it.
_PROTON: Final[tuple[tuple[str, Any], ...]] = (
    ("proton_profiler_dir", ""),
    ("proton_context", "shadow"),
    ("proton_data", "tree"),
    ("proton_backend", None),
    ("proton_mode", None),
    ("proton_hook", None),
    ("proton_output_format", None),
    ("proton_graph_attribution", False),
)


def _command(keys: str, options: str = "") -> str:
    more = f"{options} " if options else ""
    return f"vllm serve m {more}--profiler-config '{{{keys}}}'"


_TORCH: Final = '"profiler": "torch", "torch_profiler_dir": "/tmp/x"'
_PROTON_KEYS: Final = '"profiler": "proton", "proton_profiler_dir": "/tmp/x"'
_ATTRIBUTED: Final = f'{_PROTON_KEYS}, "proton_graph_attribution": true'
_EAGER: Final = "--enforce-eager"
_WITHOUT: Final = Fix("drop --profiler-config", (RemoveFlag(PROFILER),), safe=False)


def _without_attribution() -> Fix:
    key = f"{PROFILER}.proton_graph_attribution"
    return Fix("drop proton_graph_attribution", (RemoveFlag(key),), safe=False)


@rule(
    id="profiler-directory",
    title="A profiler without the directory it writes to",
    explanation="The profilers `torch` and `proton` write their traces to a directory that must be "
    "named; Proton's must be local.",
    remedy="Name the directory (`torch_profiler_dir`, `proton_profiler_dir`).",
    severity=Severity.ERROR,
    area=AREA,
    source=_CHECK,
    versions=">=0.28",
    covers=("profiler-torch-dir-missing", "profiler-proton-dir-missing", "profiler-proton-dir-uri"),
    bad=(
        Example(_command('"profiler": "torch"')),
        Example(_command('"profiler": "torch", "torch_profiler_dir": ""')),
        Example(_command('"profiler": "proton"', _EAGER)),
        Example(_command('"profiler": "proton", "proton_profiler_dir": "s3://b/x"', _EAGER)),
    ),
    good=(Example(_command(_TORCH)), Example(_command(_PROTON_KEYS, _EAGER))),
)
def directory(config: ServeConfig) -> Iterator[Finding]:
    """Look for the directory of the profiler that was asked for."""
    kind = config[_KIND]
    if kind not in ("torch", "proton"):
        return
    key = f"{kind}_profiler_dir"
    given = config[f"{PROFILER}.{key}"]
    if not given:
        yield directory.finding(
            f"the profiler {kind} needs {key}",
            location=config.place(PROFILER),
            fix=_WITHOUT,
            engine_message=f"{key} must be set when profiler is '{kind}'",
        )
    elif kind == "proton" and str(given).find("://") > 1:  # a letter alone is a drive
        yield directory.finding(
            f"proton_profiler_dir is {given}; Proton writes to a local directory only",
            location=config.place(PROFILER),
            fix=_WITHOUT,
            engine_message="proton_profiler_dir must be a local directory",
        )


@rule(
    id="profiler-foreign-option",
    title="An option of another profiler",
    explanation="Options of the profilers `torch` and `proton` are refused with another profiler, "
    "and without any.",
    remedy="Set `profiler`, or drop the option.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CHECK,
    versions=">=0.28",
    covers=(
        *("profiler-torch-dir-kind", "profiler-proton-options", "profiler-capture-kind"),
        "profiler-activities-kind",
    ),
    bad=(
        Example(_command('"torch_profiler_dir": "/tmp/x"')),
        Example(_command('"profiler": "cuda", "capture_torch_profiler": true')),
        Example(_command('"proton_data": "trace"')),
        Example(_command('"proton_graph_attribution": true'), versions=">=0.30"),
        Example(_command('"torch_profiler_activities": ["CPU"]'), versions=">=0.31"),
    ),
    good=(
        Example(_command(f'{_TORCH}, "capture_torch_profiler": true')),
        Example(_command('"proton_data": "tree"')),
        Example("vllm serve m"),
    ),
)
def foreign_option(config: ServeConfig) -> Iterator[Finding]:
    """List options that belong to a profiler which was not asked for."""
    if config[PROFILER] is None:
        return
    kind = config[_KIND]
    torch = ["torch_profiler_dir"]
    torch += ["capture_torch_profiler"] if config[f"{PROFILER}.capture_torch_profiler"] else []
    foreign = []
    if kind != "torch":
        foreign = [key for key in torch if config[f"{PROFILER}.{key}"]]
        if config[f"{PROFILER}.torch_profiler_activities"] is not None:
            foreign.append("torch_profiler_activities")
    wrong = [("torch", key) for key in foreign]
    if kind != "proton":
        wrong += [("proton", key) for key, default in _PROTON if _differs(config, key, default)]
    for wanted, key in wrong:
        yield foreign_option.finding(
            f"{key} belongs to the profiler {wanted}, and the profiler is {kind or 'none'}",
            location=config.place(PROFILER),
            fix=Fix(f"drop {key}", (RemoveFlag(f"{PROFILER}.{key}"),), safe=False),
            engine_message="only applicable when profiler is",
            evidence={"profiler": kind, "option": key},
        )


def _differs(config: ServeConfig, key: str, default: Any) -> bool:
    value = config[f"{PROFILER}.{key}"]
    return value is not None and value != default


@rule(
    id="profiler-activities-repeated",
    title="An activity of the profiler is named twice",
    explanation="`torch_profiler_activities` must name each activity once.",
    remedy="Name it once.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CHECK,
    versions=">=0.31",
    covers=("profiler-activities-dup",),
    bad=(Example(_command(f'{_TORCH}, "torch_profiler_activities": ["CPU", "CPU"]')),),
    good=(Example(_command(f'{_TORCH}, "torch_profiler_activities": ["CPU", "CUDA"]')),),
)
def activities_repeated(config: ServeConfig) -> Iterator[Finding]:
    """Look for a second mention."""
    given = config[f"{PROFILER}.torch_profiler_activities"]
    if isinstance(given, list) and len(given) != len({str(each) for each in given}):
        yield activities_repeated.finding(
            f"torch_profiler_activities names one of {', '.join(map(str, given))} twice",
            location=config.place(PROFILER),
            fix=Fix(
                "name each activity once",
                (
                    SetFlag(
                        f"{PROFILER}.torch_profiler_activities",
                        list(dict.fromkeys(map(str, given))),
                    ),
                ),
                safe=True,
            ),
            engine_message="torch_profiler_activities must not contain duplicates",
        )


@rule(
    id="profiler-proton-data",
    title="Proton's output does not fit its data",
    explanation="Graph attribution and the `hatchet` formats need `proton_data` tree (the "
    "default), `chrome_trace` needs trace; graph attribution does not go with the mode "
    "`periodic_flushing`, since both manage the phases of the data.",
    remedy="Change `proton_data`, the format or the mode.",
    severity=Severity.ERROR,
    area=AREA,
    source=_CHECK,
    versions=">=0.28",
    covers=(
        *("profiler-proton-attribution-data", "profiler-proton-attribution-flush"),
        *("profiler-proton-chrome", "profiler-proton-hatchet"),
    ),
    bad=(
        Example(_command(f'{_PROTON_KEYS}, "proton_output_format": "chrome_trace"', _EAGER)),
        Example(
            _command(
                f'{_PROTON_KEYS}, "proton_data": "trace", "proton_output_format": "hatchet"', _EAGER
            )
        ),
        Example(
            _command(
                f'{_PROTON_KEYS}, "proton_data": "trace", "proton_graph_attribution": true', _EAGER
            ),
            versions=">=0.30",
        ),
        Example(
            _command(
                f'{_PROTON_KEYS}, "proton_mode": "periodic_flushing", '
                '"proton_graph_attribution": true',
                _EAGER,
            ),
            versions=">=0.30",
        ),
    ),
    good=(
        Example(_command(f'{_PROTON_KEYS}, "proton_output_format": "hatchet"', _EAGER)),
        Example(
            _command(
                f'{_PROTON_KEYS}, "proton_data": "trace", "proton_output_format": "chrome_trace"',
                _EAGER,
            )
        ),
    ),
)
def proton_data(config: ServeConfig) -> Iterator[Finding]:
    """Compare Proton's options with one another."""
    if config[_KIND] != "proton":
        return
    data = config[f"{PROFILER}.proton_data"] or "tree"
    output = config[f"{PROFILER}.proton_output_format"]
    attribution = bool(config[f"{PROFILER}.proton_graph_attribution"])
    needs = [("tree", "proton_graph_attribution")] if attribution else []
    if output in ("hatchet", "hatchet_msgpack"):
        needs.append(("tree", f"the output {output}"))
    elif output == "chrome_trace":
        needs.append(("trace", f"the output {output}"))
    for wanted, what in needs:
        if data != wanted:
            yield proton_data.finding(
                f"{what} needs proton_data {wanted}, and it is {data}",
                location=config.place(PROFILER),
                fix=Fix(
                    f"set proton_data to {wanted}",
                    (SetFlag(f"{PROFILER}.proton_data", wanted),),
                    safe=False,
                ),
                engine_message=f"requires proton_data='{wanted}'",
            )
    if attribution and _mode(config) == "periodic_flushing":
        yield proton_data.finding(
            "proton_graph_attribution does not go with the mode periodic_flushing",
            location=config.place(PROFILER),
            fix=_without_attribution(),
            engine_message="proton_graph_attribution is incompatible with periodic_flushing",
        )


def _mode(config: ServeConfig) -> str:
    return str(config[f"{PROFILER}.proton_mode"] or "").split(":", 1)[0].lower()


@rule(
    id="profiler-proton-machine",
    title="Proton needs an NVIDIA GPU",
    explanation="The Proton profiler runs on CUDA only; its graph attribution needs Model Runner "
    "V2.",
    remedy="Use the profiler `torch`, or drop the graph attribution.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_ENGINE}._validate_profiler_config",
    versions=">=0.28",
    covers=("proton-v2",),
    bad=(
        Example(_command(_PROTON_KEYS, _EAGER), gpu="cpu"),
        Example(
            "VLLM_USE_V2_MODEL_RUNNER=0 " + _command(_ATTRIBUTED, _EAGER),
            versions=">=0.30",
        ),
    ),
    good=(Example(_command(_PROTON_KEYS, _EAGER), gpu="NVIDIA H100"),),
)
def proton_machine(config: ServeConfig) -> Iterator[Finding]:
    """Ask the platform, and the model runner where attribution is asked for."""
    if config[_KIND] != "proton":
        return
    machine = machine_of(config)
    if not machine.is_cuda:
        yield proton_machine.finding(
            f"the profiler proton runs on CUDA only, not on {machine.kind.value}",
            location=config.place(PROFILER),
            fix=_WITHOUT,
            engine_message="The Proton profiler currently supports NVIDIA CUDA only",
        )
    elif config[f"{PROFILER}.proton_graph_attribution"]:
        decision = decide_runner(config, Moment.LAST_CHECK)
        if decision.version is Runner.V1:
            yield proton_machine.finding(
                f"proton_graph_attribution needs Model Runner V2, but {decision.because}",
                location=config.place(PROFILER),
                fix=_without_attribution(),
                related=tuple(p for p in (decision.place,) if p is not None),
                engine_message="Proton CUDA graph attribution requires the V2 model runner.",
            )


@rule(
    id="profiler-proton-graphs",
    title="Proton does not see into CUDA graphs",
    explanation="Up to 0.29 Proton does not go with CUDA graphs at all. Later it does with "
    "`proton_graph_attribution`, but not in the mode `pcsampling`.",
    remedy="Add `--enforce-eager`, or, from 0.30 on, `proton_graph_attribution`.",
    severity=Severity.ERROR,
    area=AREA,
    source=f"{_ENGINE}._validate_profiler_config",
    versions=">=0.28",
    covers=("proton-pcsampling", "proton-attribution"),
    bad=(
        Example(_command(_PROTON_KEYS), gpu="NVIDIA H100", model_config=DENSE),
        Example(
            _command(f'{_ATTRIBUTED}, "proton_mode": "pcsampling"'),
            versions=">=0.30",
            gpu="NVIDIA H100",
            model_config=DENSE,
        ),
    ),
    good=(
        Example(_command(_PROTON_KEYS, _EAGER), gpu="NVIDIA H100"),
        Example(_command(_PROTON_KEYS, "-cc.cudagraph_mode=NONE"), gpu="NVIDIA H100"),
        Example(
            _command(f'{_PROTON_KEYS}, "proton_graph_attribution": true'),
            versions=">=0.30",
            gpu="NVIDIA H100",
        ),
    ),
)
def proton_graphs(config: ServeConfig) -> Iterator[Finding]:
    """Compare Proton with the graphs that there will be."""
    if config[_KIND] != "proton" or not machine_of(config).is_cuda or not _has_graphs(config):
        return
    attribution = bool(config[f"{PROFILER}.proton_graph_attribution"])
    if _mode(config) == "pcsampling" and since(config, "0.30"):
        why = "its mode pcsampling does not go with CUDA graphs"
    elif not attribution:
        why = "it does not see into CUDA graphs"
        why += " without proton_graph_attribution" if since(config, "0.30") else ""
    else:
        return
    yield proton_graphs.finding(
        f"the profiler is proton, and {why}",
        location=config.place(PROFILER),
        fix=Fix("add --enforce-eager", (SetFlag("enforce_eager", True),), safe=False),
        engine_message="CUDA graphs",
    )


def _has_graphs(config: ServeConfig) -> bool:
    if config["enforce_eager"]:
        return False
    if not since(config, "0.30"):
        if optimization_level(config) == 0:
            raise Abstain("whether CUDA graphs are off at level 0 when Proton is checked")
        return asked_graphs(config) != "NONE"
    return graph_mode(config) != "NONE" or bool(config["compilation_config.cudagraph_mm_encoder"])


@rule(
    id="profiler-front-end",
    title="The front end is profiled all the time",
    explanation="With `delay_iterations` or `max_iterations` the profiler `torch` limits what it "
    "records of the engine, but not of the front end, which costs time and memory.",
    remedy="Set `ignore_frontend`.",
    severity=Severity.WARNING,
    area=AREA,
    source=_CHECK,
    versions=">=0.28",
    covers=("profiler-frontend-overhead",),
    bad=(Example(_command(f'{_TORCH}, "max_iterations": 5')),),
    good=(
        Example(_command(f'{_TORCH}, "max_iterations": 5, "ignore_frontend": true')),
        Example(_command(_TORCH)),
    ),
)
def front_end(config: ServeConfig) -> Iterator[Finding]:
    """Look for a limit that the front end does not keep."""
    if config[_KIND] != "torch" or config[f"{PROFILER}.ignore_frontend"]:
        return
    limits = [k for k in ("delay_iterations", "max_iterations") if config[f"{PROFILER}.{k}"]]
    activities = config[f"{PROFILER}.torch_profiler_activities"]
    if limits and (activities is None or "CPU" in activities):
        yield front_end.finding(
            f"{' and '.join(limits)} do not hold for the front end, which is profiled throughout",
            location=config.place(PROFILER),
            fix=Fix(
                "ignore the front end",
                (SetFlag(f"{PROFILER}.ignore_frontend", True),),
                safe=False,
            ),
            engine_message="may result in high overhead",
        )
