from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.catalogue import Catalogue, CatalogueLibrary
from app.catalogue.compare import Absence, History, shipped_history


@pytest.fixture(scope="module")
def history() -> History:
    return shipped_history()


def renamed(catalogue: Catalogue, version: str, **dests: str) -> Catalogue:
    """Give the catalogue as another version in which flags have other names."""
    raw: dict[str, Any] = msgspec.to_builtins(catalogue)
    raw["vllm_version"] = version
    for flag in raw["flags"]:
        if flag["dest"] in dests:
            new = dests[flag["dest"]]
            flag["options"] = [f"--{new.replace('_', '-')}"]
            flag["dest"] = new
    return msgspec.convert(raw, Catalogue)


def test_a_name_that_the_version_has_is_not_absent(history: History) -> None:
    for version in history.versions:
        assert history.option("--port", version) is None
        assert history.dest("port", version) is None
        assert history.variable("VLLM_PORT", version) is None
        assert history.key("KVTransferConfig", "kv_role", version) is None


def test_a_name_that_no_version_has_is_unknown(history: History) -> None:
    assert history.option("--swap-space", "0.32.0") is None
    assert history.key("NoSuchClass", "kv_role", "0.32.0") is None


def test_what_comes_later_names_its_first_version(history: History) -> None:
    found = history.option("--grpc-port", "0.28.0")
    assert found is not None
    assert (found.first, found.removed, found.said) == (
        "0.32.0",
        False,
        "vLLM has it from 0.32.0 on",
    )


def test_what_was_removed_names_the_last_version(history: History) -> None:
    found = history.option("--no-enable-bf16x3-router-gemm", "0.33.0")
    assert found == Absence(
        "--no-enable-bf16x3-router-gemm", "0.28.0", "0.29.0", removed=True, gone="0.30.0"
    )
    assert found.said == "vLLM had it until 0.29.0"


@pytest.mark.parametrize(
    ("kind", "name", "version", "replacement"),
    [
        # The same field under another name: config/cache.py of 0.30 and 0.31 say the same of it.
        (
            "dest",
            "enable_mamba_fine_grained_prefix_cache",
            "0.31.0",
            "enable_mamba_shared_prefix_checkpoint",
        ),
        (
            "option",
            "--no-enable-mamba-fine-grained-prefix-cache",
            "0.31.0",
            "--no-enable-mamba-shared-prefix-checkpoint",
        ),
        (
            "option",
            "--no-enable-mamba-fine-grained-prefix-cache",
            "0.33.0",
            "--no-enable-mamba-shared-prefix-checkpoint",
        ),
        ("variable", "VLLM_KIMI_K3_GEMM_RS", "0.33.0", "VLLM_ENABLE_GEMM_RS"),
        (
            "variable",
            "VLLM_PREFIX_CACHE_RETENTION_INTERVAL",
            "0.30.0",
            "--prefix-cache-retention-interval",
        ),
        ("variable", "VLLM_ENGINE_ITERATION_TIMEOUT_S", "0.32.0", None),
    ],
)
def test_what_was_renamed_names_its_replacement(
    history: History, kind: str, name: str, version: str, replacement: str | None
) -> None:
    found = getattr(history, kind)(name, version)
    assert found is not None
    assert found.removed
    assert found.replacement == replacement


def test_keys_that_moved_to_another_flag_are_found(history: History) -> None:
    found = history.key("ModelConfig", "enable_return_routed_experts", "0.32.0")
    assert found is not None
    assert found.replacement == "--aux-output-config.enable_return_routed_experts"
    gone = history.key("KVTransferConfig", "kv_ip", "0.32.0")
    assert gone is not None
    assert gone.said == "vLLM had it until 0.31.0"


def test_a_name_renamed_twice_leads_to_the_last_one() -> None:
    first = CatalogueLibrary().get("0.33.0")
    second = renamed(first, "0.34.0", max_num_seqs="most_seqs")
    third = renamed(second, "0.35.0", most_seqs="seqs_at_most")
    history = History([third, first, second])
    found = history.option("--max-num-seqs", "0.35.0")
    assert found is not None
    assert (found.last, found.gone, found.replacement) == ("0.33.0", "0.34.0", "--seqs-at-most")
    unknown = history.option("--max-num-seqs", "0.34.1")
    assert unknown is not None
    assert unknown.replacement == "--most-seqs"


def test_a_version_between_two_that_have_a_name_is_not_judged(history: History) -> None:
    assert history.option("--port", "0.31.5") is None
    assert history.option("--port", "0.99.0") is None
