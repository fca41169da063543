"""What vLLM makes of models' memory: `python -m lab.memory [VERSION...]`.

Writes `tests/memory/answers/VERSION.jsonl`: of each model and option, the parameters and bytes of
the weights that vLLM would load, the pages of its cache, the blocks that memory of a known size
holds, and what one request needs. Models are those of `lab/model_configs.json` and
`lab/memory_models.json`, written by hand from what their authors publish.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from lab.catalogues import VERSIONS
from lab.environment import CHECKOUT, Lab, LabError, process_environment

KEPT: Final = CHECKOUT / "tests" / "memory" / "answers"
_FILES: Final = ("lab/model_configs.json", "lab/memory_models.json")
# The version that is asked everything; others about models with states, and of these with options.
_IN_FULL: Final = "0.32.0"
_WITH_OPTIONS: Final = frozenset(
    {"falcon-h1", "jamba-mini", "qwen3.5-9b-text", "lfm2-1.2b", "mamba-2.8b", "granite4-micro"}
)
_MEMORY: Final = 33_333_333_333
# A length that every model has, so that the memory above holds a request.
_SHORT: Final = ("--max-model-len", "1024")
# Models that cannot be built here, or whose classes want a file beside config.json.
_LEFT_OUT: Final = frozenset(
    {"deepseek-v2-lite", "llama3-8b-linear", "qwen3-4b-draft", "whisper-small", "bge-base"}
    | {"modernbert-base", "qwen2-classifier"}
)
_OPTIONS: Final = (
    ("-tp", "2"),
    ("-tp", "4"),
    ("--no-enable-prefix-caching",),
    ("--mamba-cache-mode", "all", "--enable-prefix-caching"),
    ("--block-size", "64"),
    ("--kv-cache-dtype", "fp8"),
    ("--mamba-ssm-cache-dtype", "float32"),
    ("--mamba-cache-dtype", "float32"),
    ("--dtype", "float16"),
)


def models() -> dict[str, dict[str, Any]]:
    """Give config.json by name."""
    found: dict[str, dict[str, Any]] = {}
    for file in _FILES:
        for name, parts in json.loads((CHECKOUT / file).read_text()).items():
            found[name] = parts.get("config.json", parts)
    return {name: config for name, config in found.items() if name not in _LEFT_OUT}


def cases(version: str) -> Iterator[dict[str, Any]]:
    """Give models as they are, all of them for one version, then states with one option each."""
    every, full = models(), version == _IN_FULL
    states = {name for name, config in every.items() if _keeps_states(config)}
    for name, config in every.items():
        if full or name in states:
            yield _case(name, config, ("--dtype", "bfloat16") if name == "gpt-oss-20b" else ())
    for name in sorted(states if full else states & _WITH_OPTIONS):
        for option in _OPTIONS:
            yield _case(name, every[name], option)


def _keeps_states(config: Mapping[str, Any]) -> bool:
    text = config.get("text_config") or config
    return any(key in text for key in ("conv_kernel", "conv_L_cache", "mamba_d_conv")) or (
        "linear_conv_kernel_dim" in text
    )


def _case(name: str, config: dict[str, Any], args: tuple[str, ...]) -> dict[str, Any]:
    return {
        "id": [name, list(args)],
        "config": config,
        "args": [*args, *_SHORT],
        "memory": [_MEMORY],
    }


def ask(
    lab: Lab, version: str, asked: Iterable[dict[str, Any]], gpu: str = "h100"
) -> Iterator[dict[str, Any]]:
    """Answer cases with one version.

    Raises:
        LabError: the process failed.
    """
    environment = process_environment(lab, version, build="cuda", cache=f"cuda-{gpu}")
    environment |= {"OMP_NUM_THREADS": "1", "LAB_NVIDIA": f"{gpu}:8"}
    environment["PYTHONPATH"] += os.pathsep + str(lab.model_packages)
    log = lab.logs / f"memory-{version}.log"
    with log.open("wb") as errors:
        done = subprocess.run(
            [lab.python, "-P", "-m", "lab.inside.memory"],
            env=environment,
            cwd=CHECKOUT,
            input="".join(json.dumps(case) + "\n" for case in asked).encode(),
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    if done.returncode:
        raise LabError(f"vLLM {version} failed: see {log}")
    for line in done.stdout.splitlines():
        yield json.loads(line)


def row(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what the tests compare."""
    model, args = answer["id"]
    kept = {"model": model, "args": args}
    if "error" in answer:
        return kept | {"error": answer["error"][:160]}
    kept |= {key: answer["weights"][key] for key in ("parameters", "bytes")}
    names = ("max_num_seqs", "graphs", "mode", "block_size", "request")
    kept |= {key: answer[key] for key in names if key in answer}
    pages = {page for kind, page, _ in answer["layers"] if kind == "MambaSpec"}
    if pages:
        kept["page"] = max(pages)
    return kept | (answer["blocks"][0] if "blocks" in answer else {})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.memory", description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    lab = Lab.default()
    KEPT.mkdir(exist_ok=True)
    try:
        for version in parser.parse_args().versions:
            rows = [row(answer) for answer in ask(lab, version, cases(version))]
            text = "".join(json.dumps(one) + "\n" for one in rows)
            (KEPT / f"{version}.jsonl").write_text(text)
            failed = sum("error" in one for one in rows)
            print(f"{version}: {len(rows)} rows, {failed} without an answer", file=sys.stderr)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
