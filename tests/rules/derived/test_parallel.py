"""Parallel sizes as vLLM 0.32 settles them: answers of its `create_engine_config`, recorded."""

import pytest

from app.rules.configuration.parallel_models import EXPERTS
from app.rules.derived.parallel import (
    all2all_backend,
    api_servers,
    data_parallel_size,
    executor,
    launch_of,
    nodes_within_rank,
    visible_devices,
    world_size,
)
from app.serve_config.serve_config import Abstain, UnresolvedValue
from tests.rules.derived.deriving import H100, config_of

MULTI_PORT = "--data-parallel-multi-port-external-lb"
START_RANK = "--data-parallel-start-rank 2 --data-parallel-size-local 2"
# Options; then ranks, local ranks, executor and devices of a rank, as real vLLM answered.
RECORDED = [
    ("", 1, 1, "uni", 1),
    ("-tp 2", 1, 1, "mp", 2),
    ("-dp 2", 2, 2, "mp", 1),
    ("-tp 2 -pp 2", 1, 1, "mp", 4),
    ("-tp 2 -pcp 2", 1, 1, "mp", 4),
    ("-dp 4 --data-parallel-size-local 2", 4, 2, "mp", 1),
    ("-dp 4 --data-parallel-size-local 0", 4, 0, "mp", 1),
    ("--data-parallel-size-local 0", 1, 0, "uni", 1),
    ("-dp 4 --data-parallel-rank 3", 4, 1, "mp", 1),
    ("-dp 4 --data-parallel-external-lb --nnodes 4 --node-rank 2", 4, 1, "mp", 1),
    ("-dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 4", 4, 4, "mp", 1),
    ("-dp 4 --data-parallel-start-rank 2 --data-parallel-size-local 2", 4, 2, "mp", 1),
    ("-dp 4 --data-parallel-start-rank 2", 4, 4, "mp", 1),
    ("-dp 4 --nnodes 2 --node-rank 1", 4, 2, "mp", 1),
    ("-dp 2 -tp 4 --nnodes 4 --node-rank 3", 2, 1, "mp", 4),
    (f"-dp 4 {MULTI_PORT} --data-parallel-size-local 2", 4, 1, "mp", 1),
    ("VLLM_DP_SIZE=2 VLLM_DP_RANK=1", 2, 1, "mp", 1),
    ("RANK=1 -dp 2 --distributed-executor-backend external_launcher", 2, 2, "external_launcher", 2),
]


@pytest.mark.parametrize(("options", "ranks", "local", "backend", "devices"), RECORDED)
def test_sizes_are_those_of_vllm(
    options: str, ranks: int, local: int, backend: str, devices: int
) -> None:
    config = config_of(options, EXPERTS, H100)
    launch = launch_of(config)
    assert launch is not None
    assert data_parallel_size(config) == ranks
    assert launch.local_size == local
    assert executor(config) == backend
    assert world_size(config) == devices


@pytest.mark.parametrize(
    ("options", "rank", "external", "hybrid"),
    [
        ("-dp 4", 0, False, False),
        ("-dp 4 --data-parallel-rank 3", 3, True, False),
        ("-dp 4 --data-parallel-external-lb --nnodes 4 --node-rank 2", 2, True, False),
        ("-dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 2", 0, False, True),
        ("-dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 1", 0, True, False),
        ("-dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 4", 0, False, False),
        ("-dp 4 --data-parallel-start-rank 2 --data-parallel-size-local 2", 2, False, True),
        (f"-dp 4 {START_RANK} --headless", 2, False, False),
        ("-dp 4 --data-parallel-start-rank 2", 0, False, False),
        ("-dp 4 --nnodes 2 --node-rank 1", 2, False, False),
        ("-dp 2 -tp 4 --nnodes 4 --node-rank 3", 1, False, False),
        (f"-dp 4 {MULTI_PORT} --data-parallel-size-local 2 --node-rank 1", 2, True, False),
        (f"-dp 4 {START_RANK} --api-server-count 0", 2, False, False),
    ],
)
def test_rank_and_mode_follow_from_the_options(
    options: str, rank: int, external: bool, hybrid: bool
) -> None:
    launch = launch_of(config_of(options, EXPERTS))
    assert launch is not None
    assert (launch.rank, launch.external_lb, launch.hybrid_lb) == (rank, external, hybrid)
    assert launch.local_engines_only is (external or hybrid)


@pytest.mark.parametrize(
    "options",
    [
        "-dp 4 --data-parallel-external-lb",
        "-dp 4 --data-parallel-hybrid-lb",
        "-dp 4 --data-parallel-hybrid-lb --data-parallel-external-lb",
        "-dp 4 --data-parallel-hybrid-lb --headless --data-parallel-size-local 2",
        "-dp 4 --data-parallel-rank 1 --data-parallel-size-local 2",
        "-dp 4 --data-parallel-external-lb --nnodes 2",
        "-tp 2 --nnodes 2 --node-rank 2",
        "-tp 2 --nnodes 2 --data-parallel-backend ray",
        "--nnodes 2",
    ],
)
def test_nothing_is_settled_where_vllm_refuses(options: str) -> None:
    assert launch_of(config_of(options, EXPERTS)) is None


def test_older_versions_infer_the_rank_of_an_external_server() -> None:
    options = "-dp 4 --data-parallel-external-lb --data-parallel-rank 1 --nnodes 2 --node-rank 1"
    older, newer = (launch_of(config_of(options, version=v)) for v in ("0.30.0", "0.32.0"))
    assert older is not None
    assert newer is not None
    assert (older.rank, newer.rank) == (2, 1)


@pytest.mark.parametrize(
    ("options", "servers"),
    [
        ("-dp 4", 4),
        ("-dp 4 --api-server-count 2", 2),
        ("-dp 4 --headless", 0),
        ("-dp 4 --data-parallel-rank 1", 1),
        ("-dp 4 --data-parallel-start-rank 2 --data-parallel-size-local 2", 2),
        ("-dp 4 --enable-elastic-ep", 1),
        (f"-dp 4 {MULTI_PORT} --data-parallel-size-local 2", 1),
        ("VLLM_USE_RUST_FRONTEND=1 -dp 4 --api-server-count 4", 1),
    ],
)
def test_api_servers_follow_the_mode(options: str, servers: int) -> None:
    assert api_servers(config_of(options)) == servers


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ("-tp 8", 1),
        ("-tp 8 --nnodes 2", 2),
        ("-tp 8 -dp 2 --nnodes 4", 2),
        ("-tp 4 -dp 4 --nnodes 2", 1),
        ("-tp 4 -dp 3 --nnodes 2", None),
    ],
)
def test_nodes_of_a_rank(options: str, nodes: int | None) -> None:
    assert nodes_within_rank(config_of(options, EXPERTS)) == nodes


@pytest.mark.parametrize(
    ("options", "version", "backend"),
    [
        ("", "0.32.0", "allgather_reducescatter"),
        ("--all2all-backend pplx", "0.28.0", "allgather_reducescatter"),
        ("--all2all-backend nixl_ep", "0.32.0", "nixl_ep"),
        ("--moe-backend flashinfer_moe_ep_cutedsl", "0.32.0", "passthrough"),
        ("--moe-backend flashinfer_moe_ep_mega_deep_gemm", "0.31.0", "allgather_reducescatter"),
    ],
)
def test_the_all_to_all_backend(options: str, version: str, backend: str) -> None:
    assert all2all_backend(config_of(options, version=version)) == backend


def test_devices_are_counted_only_where_somebody_says_them() -> None:
    assert visible_devices(config_of("CUDA_VISIBLE_DEVICES=4,5,6")) == 3
    assert visible_devices(config_of("CUDA_VISIBLE_DEVICES=4,5", hardware=H100)) == 2
    with pytest.raises(Abstain):
        visible_devices(config_of("-tp 2"))


def test_an_open_size_is_a_question() -> None:
    with pytest.raises(UnresolvedValue):
        launch_of(config_of("-dp $RANKS"))


def test_a_variable_that_is_no_number_is_no_size() -> None:
    with pytest.raises(Abstain):
        data_parallel_size(config_of("VLLM_DP_SIZE=two"))
