"""Keys of the compilation configuration that contradict each other, or are out of range.

Source of most: `config/compilation.py::CompilationConfig.__post_init__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.rules.declaration import Example
from app.rules.derived.compilation import COMPILED, CONFIG, PASSES, asked_compilation
from app.rules.derived.hardware import machine_of
from app.rules.registry import rule
from app.serve_config.serve_config import ServeConfig
from app.verdict.finding import Finding, Severity
from app.verdict.fix import Fix, RemoveFlag, SetFlag

AREA: Final = "compilation"
POST_INIT: Final = "vllm/config/compilation.py::CompilationConfig.__post_init__"
_OPS: Final = f"{CONFIG}.custom_ops"
_ROTARY: Final = "rotary_embedding"
_ROPE_FUSION: Final = f"{PASSES}.enable_qk_norm_rope_fusion"
_BUILT_IN: Final = frozenset({"", "eager", "inductor"})


def options(text: str) -> str:
    """Give a command with this compilation configuration."""
    return f"vllm serve m --compilation-config '{{{text}}}'"


def drop(key: str) -> Fix:
    """Give the fix that leaves one key of the compilation configuration out."""
    return Fix(f"drop {key}", (RemoveFlag(f"{CONFIG}.{key}"),), safe=False)


def numbers(config: ServeConfig, key: str) -> list[int]:
    """Give a list of numbers of the compilation configuration; what is none is left out."""
    listed = config[f"{CONFIG}.{key}"]
    return [entry for entry in listed if type(entry) is int] if isinstance(listed, list) else []


def _ops(config: ServeConfig) -> list[str]:
    listed = config[_OPS]
    return [op for op in listed if isinstance(op, str)] if isinstance(listed, list) else []


@rule(
    id="compilation-custom-ops",
    title="The list of custom ops contradicts itself",
    explanation="`custom_ops` holds at most one of `all` and `none`, and `+op` or `-op` for "
    "single ops, each at most one of the two. Fusing QK norm with rope adds "
    "`+rotary_embedding` by itself.",
    remedy="Keep one base, and one sign for each op.",
    severity=Severity.ERROR,
    area=AREA,
    source=POST_INIT,
    covers=("cc-custom-op-syntax", "cc-custom-op-two-bases", "cc-custom-op-conflict"),
    bad=(
        Example(options('"custom_ops": ["rms_norm"]')),
        Example(options('"custom_ops": ["all", "none"]')),
        Example(options('"custom_ops": ["none", "+rms_norm", "-rms_norm"]')),
        Example(
            options(
                '"custom_ops": ["-rotary_embedding"], '
                '"pass_config": {"enable_qk_norm_rope_fusion": true}'
            ),
            gpu="H100",
        ),
    ),
    good=(
        Example(options('"custom_ops": ["none", "+rms_norm", "-silu_and_mul"]')),
        Example(options('"custom_ops": ["all", "-rms_norm"]')),
        Example(options('"pass_config": {"enable_qk_norm_rope_fusion": true}')),
    ),
)
def custom_ops(config: ServeConfig) -> Iterator[Finding]:
    """Look at signs and bases."""
    ops = _ops(config)
    if not ops:
        return
    problem = _ops_problem(config, ops)
    if problem is not None:
        text, message = problem
        yield custom_ops.finding(
            text,
            location=config.place(_OPS),
            fix=Fix("drop custom_ops", (RemoveFlag(_OPS),), safe=False),
            engine_message=message,
            evidence={"custom_ops": ops},
        )


def _ops_problem(config: ServeConfig, ops: list[str]) -> tuple[str, str] | None:
    bases = [op for op in ops if op in {"all", "none"}]
    for op in ops:
        if op not in {"all", "none"} and (len(op) < 2 or op[0] not in "+-"):
            return (
                f"{op!r} in custom_ops says neither on nor off: write +{op} or -{op}",
                f"Invalid syntax '{op}' for custom op",
            )
    if len(bases) > 1:
        return (
            f"custom_ops has {len(bases)} bases ({', '.join(bases)}), and may have one",
            "custom_ops can contain only one base mode",
        )
    on = {op[1:] for op in ops if op[0] == "+"}
    if config[_ROPE_FUSION] and machine_of(config).is_cuda_alike:
        on.add(_ROTARY)
    both = sorted(on & {op[1:] for op in ops if op[0] == "-"})
    if both:
        return (
            f"custom_ops turns {', '.join(both)} both on and off",
            "custom_ops cannot both enable and disable the same operation(s)",
        )
    return None


@rule(
    id="compilation-rotary-added",
    title="vLLM turns the rotary embedding's custom op on",
    explanation="Fusing QK norm with rope works on that op only, so `+rotary_embedding` is added "
    "to `custom_ops`.",
    remedy="Nothing to do; say `+rotary_embedding` to have it in writing.",
    severity=Severity.INFO,
    area=AREA,
    source=POST_INIT,
    covers=("cc-rotary-auto-added",),
    bad=(Example(options('"pass_config": {"enable_qk_norm_rope_fusion": true}'), gpu="H100"),),
    good=(
        Example(
            options(
                '"custom_ops": ["+rotary_embedding"], '
                '"pass_config": {"enable_qk_norm_rope_fusion": true}'
            ),
            gpu="H100",
        ),
        Example("vllm serve m", gpu="H100"),
    ),
)
def rotary_added(config: ServeConfig) -> Iterator[Finding]:
    """Look for the fusion without the op."""
    ops = _ops(config)
    if not config[_ROPE_FUSION] or not {f"+{_ROTARY}", f"-{_ROTARY}"}.isdisjoint(ops):
        return
    if machine_of(config).is_cuda_alike:
        yield rotary_added.finding(
            "enable_qk_norm_rope_fusion turns the custom op rotary_embedding on",
            location=config.place(_ROPE_FUSION),
            evidence={"dest": _OPS, "asked": ops, "effective": [*ops, f"+{_ROTARY}"]},
        )


@rule(
    id="compilation-backend",
    title="The backend cannot compile in pieces",
    explanation="With the mode `vllm_compile` the backend is `inductor`, `eager` or left out. "
    "Others go with the stock modes.",
    remedy="Leave `backend` out, or set the mode to `stock_torch_compile`.",
    severity=Severity.ERROR,
    area=AREA,
    source=POST_INIT,
    covers=("cc-backend-piecewise",),
    bad=(
        Example(options('"mode": 3, "backend": "cudagraphs"')),
        Example(options('"mode": "vllm_compile", "backend": "my.own.backend"')),
    ),
    good=(
        Example(options('"mode": 3, "backend": "eager"')),
        Example(options('"mode": 3')),
    ),
)
def backend(config: ServeConfig) -> Iterator[Finding]:
    """Compare the backend with those built in, where the mode was asked for."""
    given = config[f"{CONFIG}.backend"]
    if not isinstance(given, str) or given in _BUILT_IN:
        return
    if asked_compilation(config) == COMPILED:
        yield backend.finding(
            f"backend {given!r} cannot compile in pieces, as the mode {COMPILED} does",
            location=config.place(f"{CONFIG}.backend"),
            fix=drop("backend"),
            engine_message=f"Invalid backend for piecewise compilation: {given}",
        )


@rule(
    id="compilation-positive-sizes",
    title="Sizes of the compilation configuration must be positive",
    explanation="Budgets of the vision encoder's graphs, sizes of decoder replay and ends of "
    "compile ranges count tokens; the caps on items and frames are 0 (vLLM decides) or more.",
    remedy="Give positive numbers, or leave the key out.",
    severity=Severity.ERROR,
    area=AREA,
    source=POST_INIT,
    covers=(
        "cc-decoder-replay-sizes",
        "cc-mm-encoder-items",
        "cc-mm-encoder-frames",
        "cc-mm-encoder-budgets",
        "compile-range-positive",
    ),
    bad=(
        Example(options('"decoder_replay_cudagraph_capture_sizes": [128, 0]'), versions=">=0.32"),
        Example(
            options(
                '"cudagraph_mm_encoder": true, "encoder_cudagraph_max_vision_items_per_batch": -1'
            )
        ),
        Example(
            options('"cudagraph_mm_encoder": true, "encoder_cudagraph_max_frames_per_batch": -1')
        ),
        Example(options('"encoder_cudagraph_token_budgets": [0, 2048]')),
        Example(options('"compile_ranges_endpoints": [0, 256]')),
    ),
    good=(
        Example(options('"encoder_cudagraph_max_vision_items_per_batch": -1')),
        Example(options('"encoder_cudagraph_token_budgets": [1024, 2048]')),
        Example(options('"compile_ranges_endpoints": [1, 256]')),
    ),
)
def positive(config: ServeConfig) -> Iterator[Finding]:
    """Look at each key that counts tokens."""
    whole = config[CONFIG]
    if not whole:
        return
    for key, message in _POSITIVE.items():
        wrong = [entry for entry in numbers(config, key) if entry <= 0]
        if wrong:
            yield _not_positive(config, key, wrong[0], "1", message)
    if config[f"{CONFIG}.cudagraph_mm_encoder"]:
        for key in _CAPS:
            given = config[f"{CONFIG}.{key}"]
            if type(given) is int and given < 0:
                yield _not_positive(config, key, given, "0", f"{key} must be non-negative")


_POSITIVE: Final = {
    "decoder_replay_cudagraph_capture_sizes": "All decoder_replay_cudagraph_capture_sizes must be "
    "positive",
    "encoder_cudagraph_token_budgets": "All encoder_cudagraph_token_budgets must be positive",
    "compile_ranges_endpoints": "Invalid compile range endpoint",
}
_CAPS: Final = (
    "encoder_cudagraph_max_vision_items_per_batch",
    "encoder_cudagraph_max_frames_per_batch",
)


def _not_positive(config: ServeConfig, key: str, given: Any, least: str, message: str) -> Finding:
    return positive.finding(
        f"{key} has {given}, and must be {least} or more",
        location=config.place(CONFIG),
        fix=drop(key),
        engine_message=message,
    )


@rule(
    id="compilation-sizes-word",
    title="A compile size is neither a number nor `cudagraph_capture_sizes`",
    explanation="`compile_sizes` lists numbers of tokens, written as numbers; the one word in it, "
    "`cudagraph_capture_sizes`, stands for the sizes of the CUDA graphs.",
    remedy="Write numbers without quotes.",
    severity=Severity.ERROR,
    area=AREA,
    source="vllm/config/compilation.py::CompilationConfig.post_init_cudagraph_sizes",
    covers=("cc-compile-sizes-word",),
    bad=(
        Example(options('"compile_sizes": ["8"]'), gpu="H100"),
        Example(options('"compile_sizes": [1, "all"]'), gpu="H100"),
    ),
    good=(Example(options('"compile_sizes": [1, 2, "cudagraph_capture_sizes"]'), gpu="H100"),),
)
def sizes_word(config: ServeConfig) -> Iterator[Finding]:
    """Look for other words; only platforms with CUDA graphs ask."""
    listed = config[f"{CONFIG}.compile_sizes"]
    if not isinstance(listed, list):
        return
    words = [w for w in listed if isinstance(w, str) and w != "cudagraph_capture_sizes"]
    if words and machine_of(config).is_cuda_alike:
        wanted = [int(w) if isinstance(w, str) and w.isdecimal() else w for w in listed]
        fix = Fix("drop compile_sizes", (RemoveFlag(f"{CONFIG}.compile_sizes"),), safe=False)
        if not any(isinstance(w, str) and w != "cudagraph_capture_sizes" for w in wanted):
            edit = SetFlag(f"{CONFIG}.compile_sizes", wanted)
            fix = Fix("write the sizes as numbers", (edit,), safe=True)
        yield sizes_word.finding(
            f"{words[0]!r} in compile_sizes is no number and not cudagraph_capture_sizes",
            location=config.place(CONFIG),
            fix=fix,
            engine_message="Unrecognized size type in compile_sizes",
        )


_FUSIONS: Final = (
    "fuse_norm_quant",
    "fuse_act_quant",
    "fuse_attn_quant",
    "fuse_allreduce_rms",
    "fuse_act_padding",
)


@rule(
    id="compilation-noops-kept",
    title="Fusions that need `eliminate_noops` are on without it",
    explanation="The fusions match patterns without reshapes that do nothing, which "
    "`eliminate_noops` takes out. vLLM warns that they might not work.",
    remedy="Leave `eliminate_noops` on.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/compilation.py::PassConfig.__post_init__",
    covers=(
        "passes-norm-act-quant-no-eliminate",
        "pass-attn-quant-no-eliminate",
        "pass-allreduce-no-eliminate",
        "pass-padding-no-eliminate",
    ),
    bad=(
        Example(options('"pass_config": {"eliminate_noops": false, "fuse_norm_quant": true}')),
        Example(options('"pass_config": {"eliminate_noops": false, "fuse_allreduce_rms": true}')),
    ),
    good=(
        Example(options('"pass_config": {"fuse_norm_quant": true}')),
        Example(options('"pass_config": {"eliminate_noops": false}')),
    ),
)
def noops_kept(config: ServeConfig) -> Iterator[Finding]:
    """Look for the fusions that were asked for."""
    if config[f"{PASSES}.eliminate_noops"] is not False:
        return
    on = [key for key in _FUSIONS if config[f"{PASSES}.{key}"]]
    if on:
        edit = SetFlag(f"{PASSES}.eliminate_noops", True)
        yield noops_kept.finding(
            f"{', '.join(on)} might not work with eliminate_noops off",
            location=config.place(PASSES),
            fix=Fix("turn eliminate_noops on", (edit,), safe=False),
        )


@rule(
    id="compilation-rope-cache-fusion",
    title="vLLM drops a fusion of rope with the KV cache",
    explanation="By default the graph is split where the cache is written, and then there is "
    "nothing left to fuse. It needs `splitting_ops: []` or `use_inductor_graph_partition`.",
    remedy="Set one of the two, or leave the fusion out.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/compilation.py::CompilationConfig.set_splitting_ops_for_v1",
    covers=("cc-rope-kv-no-partition", "cc-qkrope-kv-no-partition"),
    bad=(
        Example(options('"pass_config": {"fuse_rope_kvcache": true}'), gpu="MI300X"),
        Example(options('"pass_config": {"fuse_qk_norm_rope_kvcache": true}'), gpu="MI300X"),
    ),
    good=(
        Example(
            options('"splitting_ops": [], "pass_config": {"fuse_rope_kvcache": true}'),
            gpu="MI300X",
        ),
        Example("vllm serve m", gpu="MI300X"),
    ),
)
def rope_cache(config: ServeConfig) -> Iterator[Finding]:
    """Look for the fusions where the graph is split as usual; other platforms never fuse them."""
    keys = ("fuse_rope_kvcache", "fuse_qk_norm_rope_kvcache")
    asked = [key for key in keys if config[f"{PASSES}.{key}"]]
    if not asked or not machine_of(config).is_rocm or config["enforce_eager"]:
        return
    if config[f"{CONFIG}.splitting_ops"] is not None or config[f"{PASSES}.fuse_attn_quant"]:
        return
    if config[f"{CONFIG}.use_inductor_graph_partition"]:
        return
    if asked_compilation(config) in {None, COMPILED}:
        for key in asked:
            yield rope_cache.finding(
                f"{key} is dropped, as the graph is split where the cache is written",
                location=config.place(PASSES),
                evidence={"dest": f"{PASSES}.{key}", "asked": True, "effective": False},
            )


_DUMP: Final = "VLLM_DEBUG_DUMP_PATH"


@rule(
    id="compilation-dump-path",
    title="VLLM_DEBUG_DUMP_PATH replaces `debug_dump_path`",
    explanation="Where both are given, the variable wins.",
    remedy="Give one of them.",
    severity=Severity.WARNING,
    area=AREA,
    source="vllm/config/vllm.py::VllmConfig.__post_init__",
    covers=("debug-dump-env",),
    bad=(Example(f"{_DUMP}=/tmp/a " + options('"debug_dump_path": "/tmp/b"')),),
    good=(
        Example(f"{_DUMP}=/tmp/a vllm serve m"),
        Example(options('"debug_dump_path": "/tmp/b"')),
    ),
)
def dump_path(config: ServeConfig) -> Iterator[Finding]:
    """Compare both."""
    asked = config[f"{CONFIG}.debug_dump_path"]
    if not asked:
        return
    variable = config.variable(_DUMP)
    if variable is not None and variable.value != asked:
        yield dump_path.finding(
            f"debug dumps go to {variable.value!r}, from {_DUMP}, instead of {asked!r}",
            location=variable.location,
            evidence={
                "dest": f"{CONFIG}.debug_dump_path",
                "asked": asked,
                "effective": variable.value,
            },
        )
