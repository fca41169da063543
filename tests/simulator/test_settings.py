from __future__ import annotations

from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.errors import UnusableInput
from app.serve_config.serve_config import Origin, ServeConfig, Setting, Unresolved
from app.simulator.sampler import LogprobsMode, TopKTies
from app.simulator.settings import SimulatorSettings


def _config(version: str = "0.32.0", **values: Any) -> ServeConfig:
    settings = {name: Setting(value, Origin.ARGV) for name, value in values.items()}
    return ServeConfig(catalogue=CatalogueLibrary().get(version), settings=settings)


def test_a_configuration_that_says_nothing_has_vllms_defaults() -> None:
    settings = SimulatorSettings.from_serve_config(_config("0.31.0", model_tag="org/m"))

    assert settings.vllm_version == "0.31.0"
    assert settings.served_model_name == ("org/m",)
    assert settings.return_sampling_mask is False
    assert settings.enable_scale_out is False
    assert settings.logprobs_mode is LogprobsMode.RAW_LOGPROBS


def test_what_the_configuration_says_is_taken() -> None:
    settings = SimulatorSettings.from_serve_config(
        _config(
            model_tag="m",
            served_model_name=["a", "b"],
            return_sampling_mask=True,
            enable_scale_out=True,
            logprobs_mode="processed_logprobs",
            max_logprobs=-1,
            max_model_len=512,
            max_num_seqs=3,
            use_fp64_gumbel=True,
            seed=9,
            api_key=["k"],
            allowed_origins=["*"],
            override_generation_config={"top_k": 4},
            tensor_parallel_size=8,
        )
    )

    assert settings == SimulatorSettings(
        vllm_version="0.32.0",
        model="m",
        served_model_name=("a", "b"),
        logprobs_mode=LogprobsMode.PROCESSED_LOGPROBS,
        max_logprobs=-1,
        max_model_len=512,
        max_num_seqs=3,
        use_fp64_gumbel=True,
        seed=9,
        api_keys=("k",),
        allowed_origins=("*",),
        override_generation_config={"top_k": 4},
    )


def test_the_model_may_be_given_by_option_and_have_one_name() -> None:
    settings = SimulatorSettings.from_serve_config(_config(model="m", served_model_name="n"))

    assert (settings.model, settings.model_name) == ("m", "n")


def test_an_open_question_is_refused_and_named() -> None:
    config = _config(max_model_len=Unresolved(("LEN",), "$LEN"))

    with pytest.raises(UnusableInput, match=r"\$LEN"):
        SimulatorSettings.from_serve_config(config)


@pytest.mark.parametrize(
    ("version", "ties"),
    [
        ("0.29.0", TopKTies.KEEP_ALL),
        ("0.30.0", TopKTies.LOWEST_IDS),
        ("0.33.0.dev7", TopKTies.LOWEST_IDS),
    ],
)
def test_ties_follow_the_version(version: str, ties: TopKTies) -> None:
    assert SimulatorSettings(vllm_version=version).top_k_ties is ties


@pytest.mark.parametrize(
    ("version", "flags", "enabled"),
    [
        ("0.29.0", {}, True),
        ("0.30.0", {}, False),
        ("0.30.0", {"enable_scale_out": True}, True),
        ("0.32.0", {"tokens_only": True}, True),
    ],
)
def test_when_generation_by_ids_is_enabled(
    version: str, flags: dict[str, Any], enabled: bool
) -> None:
    settings = SimulatorSettings(vllm_version=version, **{"enable_scale_out": False, **flags})

    assert settings.generate_enabled is enabled
