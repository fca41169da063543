"""What vLLM itself makes of a model's memory: weights, cache pages, blocks.

    python -m lab.inside.memory      JSON lines in, JSON lines out

Started by `lab.memory`. The model's classes are built without weights (on torch's meta device),
with vLLM's own engine configuration, so that parameters are those that it would load, and cache
specifications those of its layers. Blocks come from vLLM's own planning, for memory that the case
names. A rank of several is one process whose groups say that there are others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors


def _serve_arguments(directory: str, args: list[str]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed = parser.parse_args(["--model", directory, "--skip-tokenizer-init", *args])
    engine = AsyncEngineArgs.from_cli_args(parsed)
    return engine.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


class _Group(SimpleNamespace):
    """A group of ranks of which this process is the first."""

    @property
    def is_last_rank(self) -> bool:
        return bool(self.rank_in_group == self.world_size - 1)

    @property
    def next_rank(self) -> int:
        return int((self.rank_in_group + 1) % self.world_size)


def _group(size: int) -> Any:
    return _Group(
        world_size=size,
        rank=0,
        rank_in_group=0,
        local_rank=0,
        ranks=list(range(size)),
        first_rank=0,
        last_rank=size - 1,
        is_first_rank=True,
        unique_name="lab",
        device_group=SimpleNamespace(size=lambda: size, rank=lambda: 0),
        cpu_group=SimpleNamespace(size=lambda: size, rank=lambda: 0),
        device_communicator=None,
        use_device_communicator=False,
        device=torch.device("meta"),
    )


def _pretend_groups(config: Any) -> None:
    from vllm.distributed import parallel_state

    parallel = config.parallel_config
    tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    data = parallel.data_parallel_size
    sizes = {
        "_WORLD": tensor * pipeline,
        "_INNER_DP_WORLD": tensor * pipeline,
        "_TP": tensor,
        "_PP": pipeline,
        "_DP": data,
        "_EP": tensor * data,
        "_EPLB": tensor * data,
        "_DCP": 1,
        "_PCP": 1,
    }
    for name, size in sizes.items():
        if hasattr(parallel_state, name):
            setattr(parallel_state, name, _group(size))


class _Nothing:
    """Stands for a stream or driver that nobody uses while a model is built."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: _Nothing()


def keep_off_the_gpu() -> None:
    """Keep what builds a model from asking a GPU that is not there."""
    import triton
    import vllm.utils.flashinfer as flashinfer

    cuda: Any = torch.cuda
    cuda.Stream = cuda.Event = _Nothing
    target = SimpleNamespace(backend="cuda", arch=90, warp_size=32)
    driver = SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_active_torch_device=lambda: torch.device("meta"),
        utils=SimpleNamespace(
            get_device_properties=lambda _device: {
                "max_shared_mem": 232448,
                "multiprocessor_count": 132,
            }
        ),
    )
    triton.runtime.driver.set_active(driver)
    for name in ("has_flashinfer_moe", "has_flashinfer_cutlass_fused_moe"):
        if hasattr(flashinfer, name):
            setattr(flashinfer, name, lambda: False)  # it is named as installed, and is not


class _Meta(TorchFunctionMode):  # type: ignore[misc]  # torch is the lab's alone
    """Makes every new tensor without memory, also where a device is named."""

    def __torch_function__(
        self, function: Any, _types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        keywords = keywords or {}
        if "device" in keywords or function in _device_constructors():
            keywords["device"] = torch.device("meta")
        return function(*arguments, **keywords)


@contextmanager
def _on_meta(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _Meta():
            yield
    finally:
        torch.set_default_dtype(before)


def _build(config: Any) -> Any:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model

    _pretend_groups(config)
    for name in ("cuda", "cuda.bindings", "cuda.bindings.driver", "cutlass", "cutlass.cute"):
        sys.modules.setdefault(name, MagicMock())
    with set_current_vllm_config(config), _on_meta(config.model_config.dtype):
        return initialize_model(config)


def _weights(model: Any) -> dict[str, Any]:
    tensors = {tensor: name for name, tensor in model.named_parameters(remove_duplicate=True)}
    parts: Counter[str] = Counter()
    for tensor, name in tensors.items():
        parts[_part(name)] += tensor.numel()
    return {
        "parameters": sum(tensor.numel() for tensor in tensors),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "parts": dict(parts.most_common()),
    }


def _part(name: str) -> str:
    return ".".join(piece for piece in name.split(".")[:-1] if not piece.isdigit())


def _specifications(config: Any) -> dict[str, Any]:
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    try:
        from vllm.v1.core.kv_cache_utils import register_all_kvcache_specs
    except ImportError:
        try:
            from vllm.v1.kv_cache_spec_registry import register_all_kvcache_specs
        except ImportError:
            register_all_kvcache_specs = None
    if register_all_kvcache_specs is not None:
        register_all_kvcache_specs(config)
    with set_current_vllm_config(config):
        current_platform.update_block_size_for_backend(config)
        specifications: dict[str, Any] = get_kv_cache_spec(config)
        _settle_layout(config, specifications)
    return specifications


def _settle_layout(config: Any, specifications: dict[str, Any]) -> None:
    """Since 0.30 the layout of the cache is settled once, before it is planned."""
    from vllm.v1.attention.backends import utils

    if not hasattr(utils, "resolve_kv_cache_layout"):
        return
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    layers = get_layers_from_vllm_config(config, AttentionLayerBase)
    backends = dict.fromkeys(layer.get_attn_backend() for layer in layers.values())
    names = [layout.name for layout in utils.get_supported_kv_cache_layouts(backends)]
    layout = utils.resolve_kv_cache_layout(config, [names], list(specifications.values()))
    utils.record_kv_cache_layout(config.cache_config, layout.name)


def _plan(config: Any, specifications: dict[str, Any], memory: int) -> Any:
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(config):
        try:
            import vllm.v1.core.kv_cache_planning as planning
        except ImportError:  # before 0.33
            import vllm.v1.core.kv_cache_utils as planning

            (planned,) = planning.get_kv_cache_configs(config, [dict(specifications)], [memory])
            return planned
        groups = planning.get_global_kv_cache_groups(config, [dict(specifications)])
        (planned,) = planning.get_kv_cache_configs(config, [dict(specifications)], [memory], groups)
        return planned


def _request(config: Any, specifications: dict[str, Any]) -> int:
    """Bytes that one request of the model's length may take."""
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(config):
        try:
            import vllm.v1.core.kv_cache_planning as planning
            from vllm.v1.core.kv_cache_config_builder import get_kv_cache_config_builder
        except ImportError:  # before 0.33
            import vllm.v1.core.kv_cache_utils as planning

            groups = planning.get_kv_cache_groups(config, dict(specifications))
            return int(planning._max_memory_usage_bytes_from_groups(config, groups))
        builder = get_kv_cache_config_builder(config)
        groups = planning.get_kv_cache_groups_from_builder(builder, config, dict(specifications))
        return int(planning._max_memory_usage_bytes_from_groups(builder, config, groups))


def answer(case: dict[str, Any], directory: str) -> dict[str, Any]:
    """Answer one case: {"config": config.json, "args": [...], "memory": [bytes, ...]}."""
    (Path(directory) / "config.json").write_text(json.dumps(case["config"]))
    config = _serve_arguments(directory, case.get("args", []))
    found: dict[str, Any] = {
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "graphs": config.compilation_config.cudagraph_mode.name,
        "mode": config.cache_config.mamba_cache_mode,
    }
    found["weights"] = _weights(_build(config))
    specifications = _specifications(config)
    kinds = Counter((type(spec).__name__, spec.page_size_bytes) for spec in specifications.values())
    found["layers"] = [[name, page, count] for (name, page), count in kinds.items()]
    if not specifications:
        return found
    found["request"] = _request(config, specifications)
    found["block_size"] = config.cache_config.block_size
    found["layout"] = getattr(config.cache_config, "kv_cache_layout", None)
    found["blocks"] = []
    for memory in case.get("memory", ()):
        try:
            planned = _plan(config, specifications, memory)
        except ValueError as error:
            found["blocks"].append({"memory": memory, "error": str(error)[:300]})
            continue
        groups = [len(group.layer_names) for group in planned.kv_cache_groups]
        found["blocks"].append({"memory": memory, "blocks": planned.num_blocks, "groups": groups})
    return found


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # what vLLM prints is no answer
    for line in sys.stdin:
        case = json.loads(line)
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            with tempfile.TemporaryDirectory() as directory:
                try:
                    found = answer(case, directory)
                except BaseException as error:
                    traceback.print_exc()
                    found = {"error": f"{type(error).__name__}: {error}"[:600]}
                with os.fdopen(write, "w") as stream:
                    json.dump(found, stream)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as stream:
            text = stream.read()
        os.waitpid(pid, 0)
        found = json.loads(text) if text else {"error": "the process ended without an answer"}
        with os.fdopen(os.dup(out), "w") as stream:
            stream.write(json.dumps({"id": case.get("id"), **found}) + "\n")


if __name__ == "__main__":
    import vllm.model_executor.models.registry as registry

    from lab.inside.worker import _run_forked

    registry._run_in_subprocess = _run_forked
    keep_off_the_gpu()
    import vllm.engine.arg_utils
    import vllm.v1.worker.gpu.attn_utils  # noqa: F401 - before forking

    main()
