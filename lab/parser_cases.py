"""Command lines and config files for one version, to be asked of that version's real parser.

Valid ones and mutations (typos, wrong types, bounds, duplicates, wrong nesting) are drawn from the
catalogue with a fixed seed. The word MODEL in them stands for a model directory.

    python -m lab.parser_cases 0.32.0 --model DIR > CASES        # what the oracle reads
    python -m lab.parser_cases 0.32.0 --model DIR --cases CASES --answers ANSWERS

The latter is what `tests/serve_config/parser_cases/` keeps.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from app.catalogue import Catalogue, CatalogueLibrary, Flag
from app.catalogue.catalogue import ConfigField
from app.serve_config.class_rules import config_class_of
from app.serve_config.values import argument_converter

MODEL: Final = "MODEL"
Case = dict[str, Any]

# Flags whose valid values depend on the machine, on files or on the network.
_SKIPPED: Final = frozenset(
    {"config", "model", "model_tag", "chat_template", "log_config_file", "uds", "tokenizer"}
    | {"hf_config_path", "load_format", "quantization", "headless", "grpc", "device_ids"}
)


def hand_written() -> Iterator[tuple[list[str], dict[str, str], dict[str, str]]]:
    """Give what the grammar itself is about; the flags exist in every version."""
    plain: list[list[str]] = [
        [MODEL],
        [],
        ["--port", "8000"],
        ["--model", MODEL],
        [f"--model={MODEL}"],
        ["--model"],
        ["--model="],
        [MODEL, "--model", "other"],
        ["--port", "8000", "--model", MODEL, "-tp", "2"],
        [MODEL, "other"],
        ["--enforce-eager", "true", MODEL],
        ["--enforce-eager", MODEL],
        [MODEL, "--enforce-eager", "true"],
        [MODEL, "--enforce-eager=true"],
        [MODEL, "--no-enforce-eager"],
        [MODEL, "--no_enforce_eager"],
        [MODEL, "--enforce_eager"],
        [MODEL, "--max_model_len=2048"],
        [MODEL, "--max-model-l", "2048"],
        [MODEL, "--max-model", "2048"],
        [MODEL, "--max-num", "4"],
        [MODEL, "--max"],
        [MODEL, "--tensor-parallel", "2"],
        [MODEL, "-tp", "2"],
        [MODEL, "-tp=2"],
        [MODEL, "-tp2"],
        [MODEL, "-t", "2"],
        [MODEL, "-d", "2"],
        [MODEL, "-x"],
        [MODEL, "-x", "3"],
        [MODEL, "--"],
        ["--", MODEL],
        [MODEL, "--", "x"],
        ["--port", "8000", "--", MODEL],
        [MODEL, "--port", "--", "8000"],
        [MODEL, "-O3"],
        [MODEL, "-O", "3"],
        [MODEL, "-O=3"],
        [MODEL, "-O"],
        [MODEL, "-O", "7"],
        [MODEL, "-O9"],
        [MODEL, "-O.mode=3"],
        [MODEL, "-O", '{"mode": 3}'],
        [MODEL, "-cc", '{"mode": 3}'],
        [MODEL, "-cc.mode=3"],
        [MODEL, "-cc.mode", "3"],
        [MODEL, "-cc.mode"],
        [MODEL, "--compilation-config.mode=3"],
        [MODEL, "--compilation_config.cudagraph_mode", "NONE"],
        [MODEL, "--compilation-config.cudagraph_mode", "nope"],
        [MODEL, "--compilation-config.cudagraph-mode", "NONE"],
        [MODEL, "--compilation-config.mode", "VLLM_COMPILE"],
        [MODEL, "--compilation-config.mode", "vllm_compile"],
        [MODEL, "--compilation-config.mode", "9"],
        [MODEL, "--compilation-config", "3"],
        [MODEL, "--compilation-config", "mode"],
        [MODEL, "--compilation-config", "[]"],
        [MODEL, "--compilation-config", "{mode: 3}"],
        [MODEL, "--compilation-config", "{'mode': 3}"],
        [MODEL, "--compilation-config", '{"mode": 3,}'],
        [MODEL, "--compilation-config", '{"mode": "3"}'],
        [MODEL, "--compilation-config", '{"mode": 3.0}'],
        [MODEL, "--compilation-config", '{"mode": null}'],
        [MODEL, "--compilation-config", '{"max_cudagraph_capture_size": 1k}'],
        [MODEL, "--compilation-config", '{"cudagraph_capture_sizes": [1, 2, "x"]}'],
        [MODEL, "--compilation-config", '{"cudagraph_capture_sizes": ["1", 2.0]}'],
        [MODEL, "--compilation-config", '{"pass_config": {"nope": true}}'],
        [MODEL, "--compilation-config", '{"pass_config": {"fuse_norm_quant": "maybe"}}'],
        [MODEL, "--compilation-config", '{"pass_config": {"fuse_norm_quant": "yes"}}'],
        [MODEL, "--compilation-config", '{"pass_config": 3}'],
        [MODEL, "--compilation-config", '{"mode": 3}', "-cc.cudagraph_mode=NONE"],
        [MODEL, "-cc.cudagraph_mode=NONE", "--compilation-config.mode=0"],
        [MODEL, "-cc.pass_config.fuse_norm_quant=true", "-cc.pass_config.fuse_act_quant=false"],
        [MODEL, "-cc.custom_ops+", "none", "-cc.custom_ops+=+rms_norm,+silu_and_mul"],
        [MODEL, "-cc.custom_ops+", "none"],
        [MODEL, "-cc.mode=3", "-cc.mode=0"],
        [MODEL, "-cc.a.b=3", "-cc.a=3"],
        [MODEL, "--hf-overrides", "{}"],
        [MODEL, "--hf-overrides", '{"max_position_embeddings": 4096}'],
        [MODEL, "--hf-overrides.max_position_embeddings", "4096"],
        [MODEL, "--hf-overrides", "x"],
        [MODEL, "--hf-overrides", "{x}"],
        [MODEL, "--watermark", "-0.5"],
        [MODEL, "--gpu-memory-utilization", "-0.5"],
        [MODEL, "--gpu-memory-utilization=-0.5"],
        [MODEL, "--gpu-memory-utilization", "0"],
        [MODEL, "--gpu-memory-utilization", "0.5"],
        [MODEL, "--gpu-memory-utilization", "1.5"],
        [MODEL, "--gpu-memory-utilization", "nan"],
        [MODEL, "--gpu-memory-utilization", "1e-1"],
        [MODEL, "--gpu-memory-utilization", "90%"],
        [MODEL, "--max-logprobs", "-2"],
        [MODEL, "--max-logprobs", "-1"],
        [MODEL, "--max-logprobs=-1"],
        [MODEL, "--max-logprobs", "20.0"],
        [MODEL, "--max-logprobs", "1_000"],
        [MODEL, "--max-logprobs", " 5 "],
        [MODEL, "--max-logprobs", ""],
        [MODEL, "--max-logprobs", "5", "--max-logprobs", "-2"],
        [MODEL, "--max-logprobs", "-2", "--max-logprobs", "5"],
        [MODEL, "--seed", "-1"],
        [MODEL, "--seed", "None"],
        [MODEL, "--dtype", "bf16"],
        [MODEL, "--dtype", "BFLOAT16"],
        [MODEL, "--served-model-name", "a", "b"],
        ["--served-model-name", "a", MODEL],
        ["--served-model-name", "a", "--model", MODEL],
        ["--served_model_name=a", "--port", "8000"],
        [MODEL, "--served-model-name"],
        [MODEL, "--api-key", "a", "--api-key", "b"],
        ["--api-key", "a", MODEL],
        [MODEL, "--lora-modules", "a=b"],
        [MODEL, "--lora-modules", '{"name": "a", "path": "b"}'],
        [MODEL, "--lora-modules", '{"name": "a"}'],
        [MODEL, "--lora-modules", '[{"name": "a", "path": "b"}]'],
        [MODEL, "--lora-modules", "a"],
        [MODEL, "--lora-modules", "a=b", '{"name": "c", "path": "d", "x": 1}'],
        [MODEL, "--allowed-origins", '["*"]'],
        [MODEL, "--allowed-origins", "*"],
        [MODEL, "--middleware", "a.b", "--middleware", "c.d", "--enforce-eager"],
        [MODEL, "--task", "generate"],
        [MODEL, "--swap-space", "8"],
        [MODEL, "--enable-return-sampling-mask"],
        [MODEL, "--enable-auto-tool-choice"],
        [MODEL, "--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
        [MODEL, "--enable-log-outputs"],
        [MODEL, "--enable-log-outputs", "--enable-log-requests"],
        [MODEL, "--enable-per-request-metrics", "--disable-log-stats"],
        [MODEL, "--enable-per-request-metrics"],
        [MODEL, "--data-parallel-multi-port-external-lb"],
        [MODEL, "-dpm", "-dp", "4", "-dpl", "2"],
        [MODEL, "-dpm", "-dp", "4", "-dpl", "3"],
        [MODEL, "-dpm", "-dp", "4", "-dpl", "2", "--port", "9255"],
        [MODEL, "-dpm", "-dp", "4", "-dpl", "2", "-dpr", "3"],
        [MODEL, "-dpm", "-dp", "4", "-dpl", "2", "--uds", "/tmp/x"],  # noqa: S108 - never opened
        [MODEL, "-dpm", "-dp", "4", "-dpl", "2", "-asc", "2"],
        [MODEL, "--hf-token"],
        [MODEL, "--hf-token", "x"],
        [MODEL, "--hf-token=x"],
        ["--hf-token", MODEL],
        [MODEL, "--kv-transfer-config", '{"kv_role": "kv_all"}'],
        [MODEL, "--kv-transfer-config", '{"kv_rolee": "kv_both"}'],
        [MODEL, "--kv-transfer-config", '{"kv_connector_extra_config": {"x": 80m}}'],
        [MODEL, "--kv-transfer-config", "None"],
        [MODEL, "--kv-transfer-config", ""],
        [MODEL, "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
        [MODEL, "--speculative-config", '{"metod": "ngram", "num_speculative_tokens": 3}'],
        [MODEL, "--speculative-config", '{"method": "ngram", "num-speculative-tokens": 3}'],
        [MODEL, "--speculative-config", "{method: ngram}"],
        [MODEL, "--speculative-config.method", "ngram"],
        [MODEL, "--spec-method", "ngram"],
        [MODEL, "--max-model-len", "auto"],
        [MODEL, "--max-model-len", "-1"],
        [MODEL, "--max-model-len", "-2"],
        [MODEL, "--max-model-len", "0"],
        [MODEL, "--attention-backend", "nope"],
        [MODEL, "--attention-config.backend", "flash_attn"],
        [MODEL, "--attention-config", '{"backend": "nope"}'],
        [MODEL, "--moe-backend", "deep-gemm"],
        [MODEL, "--moe-backend", "TRITON"],
        [MODEL, "--kernel-config", '{"moe_backend": "deep-gemm"}'],
        [MODEL, "--kernel-config", '{"moe_backend": "nope"}'],
        [MODEL, "--device-ids", "0, 1,x"],
        [MODEL, "--limit-mm-per-prompt", '{"image": 2}'],
        [MODEL, "--limit-mm-per-prompt", "image=2"],
        [MODEL, "--limit-mm-per-prompt.image", "2"],
        [MODEL, "--additional-config", "x"],
        [MODEL, "--additional-config", '{"a": 1}'],
        [MODEL, "--help"],
        [MODEL, "--help=ModelConfig"],
        [MODEL, "-h"],
        [MODEL, "--port", "-h"],
        [MODEL, "--host", "0.0.0.0", "--port", "8000"],  # noqa: S104 - an argument
        [MODEL, "--port", "8000 "],
        [MODEL, "--port", "8000x"],
        [MODEL, "--port"],
        [MODEL, "\u2013\u2013port", "8000"],
        [MODEL, "--disable-cascade-attn"],
        [MODEL, "--no-disable-log-stats"],
        [MODEL, "--config=c.yaml"],
        ["--config=c.yaml", "--port", "9000"],
    ]
    for number in ("32k", "32K", "1.5k", "1.5K", "32kb", "32 k", "1e5", "0x10", "1k ", "1M", "k"):
        plain.append([MODEL, "--max-model-len", number])
        plain.append([MODEL, "--max-num-batched-tokens", number])
    plain += [[MODEL, "--max-num-seqs", "1k"], [MODEL, "--max-num-seqs", "0"]]
    for args in plain:
        yield args, {}, {}
    yield from _with_files()
    for env in (
        {"VLLM_USE_V2_MODEL_RUNNER": "zz"},
        {"VLLM_USE_V2_MODEL_RUNNER": ""},
        {"VLLM_USE_V2_MODEL_RUNNER": "true"},
        {"VLLM_NOT_A_VARIABLE": "1"},
        {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"},
    ):
        yield [MODEL], env, {}
        yield [MODEL, "--fail-on-environ-validation"], env, {}


def _with_files() -> Iterator[tuple[list[str], dict[str, str], dict[str, str]]]:
    model = f"model: {MODEL}\n"
    for text in (
        "",
        "port: 8000\n",
        "max-model-len: 2048\n",
        "max_model_len: 2048\n",
        "max-model: 2048\n",
        "max-model-len: 2k\n",
        "max-model-len: 0x800\n",
        "max-model-len: 2_048\n",
        "max-model-len: '2048'\n",
        "gpu-memory-utilization: 1e-1\n",
        "gpu-memory-utilization: 0.5\n",
        "enforce-eager: true\n",
        "enforce-eager: on\n",
        "enforce-eager: 'true'\n",
        "enforce-eager: false\n",
        "enforce_eager: false\n",
        "no-enforce-eager: true\n",
        "enable-prefix-caching: no\n",
        "max-logprobs: true\n",
        "max-logprobs: null\n",
        "max-logprobs: -2\n",
        "max-logprobs: 5\nmax-logprobs: -2\n",
        "max-logprobs: -2\nmax-logprobs: 5\n",
        "seed: null\n",
        "tokenizer-revision: null\n",
        "served-model-name: [a, b]\n",
        "served-model-name: []\n",
        "served-model-name: a\n",
        "cudagraph-capture-sizes: [1, 2, 4]\n",
        "allowed-origins: ['*']\n",
        "allowed-origins: '[\"*\"]'\n",
        "lora-modules: [{name: a, path: b}]\n",
        "lora-modules: ['a=b']\n",
        "compilation-config: {mode: 3}\n",
        "compilation_config:\n  cudagraph_mode: NONE\n",
        "compilation-config:\n  cudagraph-mode: NONE\n",
        "compilation-config: '{\"mode\": 3}'\n",
        "compilation-config.mode: 3\n",
        "compilation-config: {mode: 2001-01-01}\n",
        "speculative-config: {method: ngram, num_speculative_tokens: 3}\n",
        "speculative-config: {metod: ngram}\n",
        "hf-overrides: {a: {b: 1}}\n",
        "8000: x\n",
        "nope: 1\n",
        "nope: false\n",
        "- a\n",
        "text\n",
        "a: [1\n",
        "a: b: c\n",
        "<<: {port: 8000}\n",
        "x: &x {mode: 3}\ncompilation-config: *x\n",
        "-tp: 2\n",
        "tp: 2\n",
        "port: 8000\ntensor-parallel-size: 2\ndtype: bf16\n",
        "dtype: bfloat16\n",
        "return-sampling-mask: true\nlogprobs-mode: processed_logprobs\n",
    ):
        yield [MODEL, "--config", "c.yaml"], {}, {"c.yaml": text}
        if text[:1] not in {"-", "", "<", "t", "a"}:
            yield ["--config", "c.yaml"], {}, {"c.yaml": model + text}
    for args in (
        ["--config", "c.yaml"],
        ["--config", "c.yaml", MODEL],
        ["--config", "c.yaml", "--model", MODEL],
        ["--port", "9000", "--config", "c.yaml", MODEL],
        [MODEL, "--config"],
        [MODEL, "--config", "c.yaml", "--config", "c.yaml"],
        [MODEL, "--config", "c.json"],
        [MODEL, "--config", "absent.yaml"],
        [MODEL, "--port", "9000", "--config", "c.yaml", "--max-logprobs", "7"],
        [MODEL, "--max_logprobs", "-2", "--config", "c.yaml"],
        [MODEL, "--conf", "c.yaml"],
    ):
        yield args, {}, {"c.yaml": "max-logprobs: 5\n", "c.json": "{}"}
    yield ["--config", "c.yaml", "--served-model-name", "a"], {}, {"c.yaml": model}
    yield [MODEL, "--config", "c.yaml", "-cc.mode=0"], {}, {"c.yaml": "compilation-config: {x: 1}"}


def generated(catalogue: Catalogue, rng: random.Random) -> Iterator[list[str]]:
    """Give, for each flag, right and wrong uses of it."""
    options = [o for f in catalogue.flags for o in f.options if o.startswith("--")]
    for flag in catalogue.flags:
        if flag.dest in _SKIPPED or not flag.options:
            continue
        option = rng.choice(flag.options)
        if flag.nargs == 0:
            yield [MODEL, option]
            yield [MODEL, f"{option}=1"]
            for negative in flag.negative_options[:1]:
                yield [MODEL, negative]
        else:
            for value in _values(flag, catalogue, rng):
                joined = rng.random() < 0.3 and option.startswith("--")
                yield [MODEL, f"{option}={value}"] if joined else [MODEL, option, value]
            yield [MODEL, option]
        cut = option[: rng.randrange(4, len(option) + 1)] if len(option) > 4 else option
        yield [MODEL, cut] if flag.nargs == 0 else [MODEL, cut, _good(flag, rng)]
        yield [MODEL, _typo(option, rng)] if flag.nargs == 0 else [MODEL, _typo(option, rng), "1"]
        second = rng.choice(options)
        yield [MODEL, option, second]


def _values(flag: Flag, catalogue: Catalogue, rng: random.Random) -> Iterator[str]:
    yield _good(flag, rng)
    yield rng.choice(["", "None", "zz", "1.5", "-1", "true", "0", "1k", "[]", "{}", " 1", "null"])
    name = config_class_of(flag)
    if name is not None and name in catalogue.config_classes:
        fields = catalogue.config_classes[name].fields
        for field_name in rng.sample(sorted(fields), min(8, len(fields))):
            field = fields[field_name]
            for value in _field_values(field, rng):
                yield json.dumps({field_name: value})
        yield json.dumps({_typo(rng.choice(sorted(fields)), rng): 1})
    constraints = _constraints(flag, catalogue)
    for kind, bound in constraints.items():
        if kind in {"ge", "gt", "le", "lt"}:
            step = 1 if isinstance(bound, int) else 0.01
            yield from (str(bound), str(bound - step), str(bound + step))


def _constraints(flag: Flag, catalogue: Catalogue) -> dict[str, Any]:
    config_class = catalogue.config_classes.get(flag.config_class or "")
    field = config_class and config_class.fields.get(flag.config_field or "")
    return dict(field.constraints) if field else {}


def _field_values(field: ConfigField, rng: random.Random) -> Iterator[Any]:
    yield rng.choice([1, 0, -1, "1", "zz", True, "true", 1.5, None, [], {}, [1], {"a": 1}, "auto"])
    tree = json.dumps(field.type)
    if '"literal"' in tree:
        choices = [v for part in field.type.get("of", [field.type]) for v in part.get("values", [])]
        if choices:
            yield rng.choice(choices)
            yield f"{rng.choice(choices)}x"
    for kind, bound in field.constraints.items():
        if kind in {"ge", "gt", "le", "lt"}:
            yield bound
            yield bound - 1
            yield bound + 1


def _good(flag: Flag, rng: random.Random) -> str:
    if flag.choices:
        return str(rng.choice([c for c in flag.choices if c is not None]))
    kind = argument_converter(flag).name
    samples: dict[str, list[str]] = {
        "int": ["1", "2", "8"],
        "float": ["0.5", "1", "2.5"],
        "json": ["{}", '["a"]'],
        "dataclass_json": ["{}"],
        "union_dict_and_str": ["{}", "x"],
        "human_readable_int": ["1k", "2048", "2K"],
        "human_readable_int_or_auto": ["2048", "auto"],
    }
    return rng.choice(samples.get(kind, ["x", "auto"]))


def _typo(word: str, rng: random.Random) -> str:
    at = rng.randrange(3, max(4, len(word)))
    return rng.choice([word[:at] + word[at + 1 :], word[:at] + "x" + word[at:], word + "s"])


def config_files(catalogue: Catalogue, rng: random.Random, count: int) -> Iterator[str]:
    """Give config files with several settings of every kind."""
    flags = [f for f in catalogue.flags if f.options and f.dest not in _SKIPPED]
    for _ in range(count):
        settings: dict[str, Any] = {}
        for flag in rng.sample(flags, 3):
            key = flag.name.removeprefix("--")
            key = rng.choice([key, key.replace("-", "_"), key if rng.random() < 0.8 else f"{key}s"])
            if flag.nargs == 0:
                settings[key] = rng.choice([True, True, False, "true"])
            elif flag.nargs == "+":
                settings[key] = [_good(flag, rng), _good(flag, rng)]
            else:
                settings[key] = yaml.safe_load(_good(flag, rng))
        yield yaml.safe_dump(settings, sort_keys=False)


def cases(version: str, seed: int, count: int) -> list[Case]:
    """Give all hand-written cases of a version and `count` generated ones."""
    catalogue = CatalogueLibrary().get(version)
    rng = random.Random(f"{version}/{seed}")  # noqa: S311 - not for secrets
    rows = list(hand_written())
    pool: list[tuple[list[str], dict[str, str], dict[str, str]]]
    pool = [(args, {}, {}) for args in generated(catalogue, rng)]
    rows += rng.sample(pool, min(count * 9 // 10, len(pool)))
    for text in config_files(catalogue, rng, count // 10):
        rows.append(([MODEL, "--config", "c.yaml"], {}, {"c.yaml": text}))
    return [
        {"id": i, "args": args, "env": env, "files": files}
        for i, (args, env, files) in enumerate(rows)
    ]


def recorded(case: Case, answer: dict[str, Any], model: str) -> Case:
    """Put vLLM's answer with the case, without what belongs to this machine."""
    case = json.loads(json.dumps(case).replace(model, MODEL))
    row = {key: case[key] for key in ("args", "env", "files") if case[key]}
    row.update(accepted=answer["accepted"], stage=answer["stage"])
    if not answer["accepted"]:
        row["error"] = " ".join((answer["error"] or "").replace(model, MODEL).split())[:160]
    values = {k: v for k, v in answer["resolved"].items() if k in _COMPARED}
    if values:
        row["resolved"] = values
    return row


# Facts of vLLM's finished configuration that are a flag's value, unchanged.
_COMPARED: Final = frozenset(
    {"max_logprobs", "logprobs_mode", "return_sampling_mask", "enforce_eager", "seed"}
    | {"tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization"}
    | {"generation_config", "max_num_seqs", "max_num_batched_tokens", "max_model_len"}
)


def main() -> None:
    """Print the cases of one version, or the cases with vLLM's answers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version")
    parser.add_argument("--model", required=True, help="directory that MODEL stands for")
    parser.add_argument("--count", type=int, default=450)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=Path, help="cases printed before, to put answers to")
    parser.add_argument("--answers", type=Path, help="what the oracle answered to them")
    options = parser.parse_args()
    if options.answers is None:
        for case in cases(options.version, options.seed, options.count):
            text = json.dumps(case)
            for before, after in (('"', '"'), ("model: ", "\\n"), ("--model=", '"')):
                text = text.replace(f"{before}{MODEL}{after}", f"{before}{options.model}{after}")
            print(text)
        return
    with options.cases.open() as asked, options.answers.open() as answered:
        for case, answer in zip(asked, answered, strict=True):
            print(json.dumps(recorded(json.loads(case), json.loads(answer), options.model)))


if __name__ == "__main__":
    main()
