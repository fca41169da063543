"""A vLLM of a few lines, with the seams that the extractor holds on to.

Kept as text: it is another project's package, not a module of these tests.
"""

from __future__ import annotations

from pathlib import Path

VERSION = "0.99.0+fork"

FILES = {
    "vllm-0.99.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0+fork\n",
    "vllm/__init__.py": '''\
"""A vLLM of a few lines that has the seams the extractor holds on to."""

__version__ = "0.99.0+fork"
''',
    "vllm/config/__init__.py": """\
from vllm.config.cache import CacheConfig
from vllm.config.vllm import VllmConfig

__all__ = ["CacheConfig", "VllmConfig"]
""",
    "vllm/config/cache.py": """\
from dataclasses import dataclass
from typing import Literal

CacheDType = Literal["auto", "fp8"]


@dataclass
class CacheConfig:
    block_size: int = 16
    cache_dtype: CacheDType = "auto"
""",
    "vllm/config/vllm.py": """\
from dataclasses import dataclass, field

from vllm.config.cache import CacheConfig

ROCM_DEFAULT_MRV1_ARCHITECTURES = frozenset({"OldForCausalLM"})


@dataclass
class VllmConfig:
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    return_sampling_mask: bool = False

    @property
    def use_v2_model_runner(self) -> bool:
        return True

    def _get_v2_model_runner_unsupported_features(self) -> list[str]:
        unsupported = []
        if self.speculative_config is not None and self.speculative_config.method in ("oracle",):
            unsupported.append(f"speculative method '{self.speculative_config.method}'")
        return unsupported

    def _verify_sampling_replay_config(self) -> None:
        model_config = self.model_config
        if not self.use_v2_model_runner:
            raise ValueError("replay wants the second runner")
        if model_config.dreams_of_sheep:
            raise ValueError("replay does not dream")
""",
    "vllm/engine/arg_utils.py": """\
import argparse
import dataclasses
import json

from vllm.config import CacheConfig


@dataclasses.dataclass
class AsyncEngineArgs:
    model: str = "a/model"


def optional_type(return_type):
    def _optional_type(val):
        return None if val in ("", "None") else return_type(val)

    return _optional_type


def parse_sheep(val):
    return val * 2


def get_kwargs(cls):
    return {
        f.name: {"default": f.default, "help": "Help of the original.", "type": type(f.default)}
        for f in dataclasses.fields(cls)
    }


def add_arguments(parser):
    cache = parser.add_argument_group("CacheConfig", "A description.")
    kwargs = get_kwargs(CacheConfig)["block_size"]
    kwargs["help"] += " With more."
    cache.add_argument("--block-size", **kwargs)
    parser.add_argument("--overrides", type=optional_type(json.loads), default=None)
    parser.add_argument("--sheep", type=parse_sheep, default="", metavar="{dolly,molly} or a name")
    parser.add_argument("--eager", action=argparse.BooleanOptionalAction, default=False)
""",
    "vllm/entrypoints/launchers/cli_args.py": """\
from vllm.engine.arg_utils import add_arguments


def make_arg_parser(parser):
    add_arguments(parser)
    return parser
""",
    "vllm/envs.py": """\
import os


def maybe_convert_bool(value):
    return None if value is None else bool(int(value))


def env_with_choices(env_name, default, choices, case_sensitive=True):
    return lambda: os.getenv(env_name, default)


def strange():
    if "VLLM_STRANGE" in os.environ:
        return int(os.environ["VLLM_STRANGE"])
    return float(os.environ["VLLM_STRANGER"])


environment_variables = {
    "VLLM_USE_V2_MODEL_RUNNER": lambda: maybe_convert_bool(
        os.getenv("VLLM_USE_V2_MODEL_RUNNER", None)
    ),
    "VLLM_LAYOUT": env_with_choices("VLLM_LAYOUT", "nhd", ["nhd", "hnd"], case_sensitive=False),
    "VLLM_STRANGE": strange,
}
""",
    "vllm/model_executor/models/interfaces.py": """\
def supports_lora(cls):
    return cls.__name__ == "Plain"
""",
    "vllm/model_executor/models/registry.py": """\
import dataclasses
import os


@dataclasses.dataclass
class _ModelInfo:
    is_hybrid: bool
    attn_type: str

    @staticmethod
    def from_model_cls(cls):
        return _ModelInfo(is_hybrid=cls.is_hybrid, attn_type="decoder")


class Lazy:
    def __init__(self, load):
        self.load_model_cls = load


class Hybrid:
    is_hybrid = True


class Plain:
    is_hybrid = False


def missing():
    raise ModuleNotFoundError("No module named 'kernels'")


class ModelRegistry:
    models = {
        "AHybridForCausalLM": Lazy(lambda: Hybrid),
        "BCrashingForCausalLM": Lazy(lambda: os.abort()),
        "CMissingForCausalLM": Lazy(missing),
        "DPlainForCausalLM": Lazy(lambda: Plain),
    }


_PREVIOUSLY_SUPPORTED_MODELS = {"OldForCausalLM": "0.90.0"}
_OOT_SUPPORTED_MODELS = {}
""",
    "vllm/platforms/__init__.py": """\
import enum
import os


class PlatformEnum(enum.Enum):
    CUDA = 1
    UNSPECIFIED = 2


class Platform:
    def __init__(self, kind):
        self._enum = kind

    def is_unspecified(self):
        return self._enum is PlatformEnum.UNSPECIFIED

    def get_device_capability(self):
        return None


_current_platform = Platform(PlatformEnum[os.environ.get("MINIATURE_PLATFORM", "CUDA")])


def __getattr__(name):
    if name == "current_platform":
        return _current_platform
    raise AttributeError(name)
""",
    "vllm/platforms/cuda.py": """\
from vllm.platforms import Platform, PlatformEnum


def CudaPlatform():
    return Platform(PlatformEnum.CUDA)
""",
    "vllm/platforms/interface.py": """\
from typing import NamedTuple


class DeviceCapability(NamedTuple):
    major: int
    minor: int
""",
    "vllm/utils/argparse_utils.py": """\
import argparse


class FlexibleArgumentParser(argparse.ArgumentParser):
    pass
""",
    "vllm/v1/attention/backends/registry.py": """\
import enum


class AttentionBackendEnum(enum.Enum):
    MISSING = "vllm.v1.attention.backends.missing"

    def get_class(self):
        raise ImportError("no kernels in /somewhere/on/this/machine.so here")
""",
    "vllm/v1/engine/input_processor.py": """\
class InputProcessor:
    def _validate_params(self, params):
        if params.unrelated:
            raise ValueError("not about replay")
        if self.model_config.return_sampling_mask and params.temperature <= 0:
            raise ValueError("replay wants warmth")
""",
}


def write(directory: Path) -> Path:
    """Write the package below `directory`; give the path to import it from."""
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.suffix == ".py":
            for package in path.relative_to(directory).parents[:-1]:
                (directory / package / "__init__.py").touch()
    return directory
