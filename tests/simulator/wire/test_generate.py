from __future__ import annotations

from typing import Any

import pytest

from app.replay.report import replay
from app.simulator.sampler import LogprobsMode
from app.simulator.settings import SimulatorSettings
from tests.simulator.client import (
    GENERATE,
    PROMPT,
    VERSIONS,
    client_of,
    events,
    generate,
    generation,
)

EVERY_VERSION = pytest.mark.parametrize("version", VERSIONS)


def _settings(version: str, **values: Any) -> SimulatorSettings:
    return SimulatorSettings(vllm_version=version, **values)


@EVERY_VERSION
@pytest.mark.parametrize("fp64", [False, True])
@pytest.mark.asyncio
async def test_every_seeded_row_replays_exactly(version: str, fp64: bool) -> None:
    settings = _settings(version, max_logprobs=64, use_fp64_gumbel=fp64)

    for seed, (temperature, top_k, top_p, min_p) in enumerate(
        [(1.0, 1, 1.0, 0.0), (0.5, 20, 0.9, 0.0), (1.7, 32, 1.0, 0.05), (0.001, 5, 0.5, 0.0)]
    ):
        body = generation(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            n=2,
            output_kind=2,
            logprobs=64,
            repetition_penalty=1.2,
        )
        answer = await generate(body, settings)
        report = replay(
            {
                "vllm_version": version,
                "request": body,
                "response": answer,
                "options": {"use_fp64_gumbel": fp64},
            }
        )
        assert report.verdict == "consistent", report.findings
        assert report.rows["exact"] == report.rows["total"] == 12


@pytest.mark.asyncio
async def test_raw_logprobs_are_told_from_processed_ones() -> None:
    settings = SimulatorSettings(logprobs_mode=LogprobsMode.RAW_LOGPROBS)
    body = generation(logprobs=20, temperature=0.7)
    case = {"vllm_version": "0.32.0", "request": body, "response": await generate(body, settings)}

    assert replay(case).verdict == "inconsistent"


@EVERY_VERSION
@pytest.mark.asyncio
async def test_a_stream_says_the_same_as_the_whole_answer(version: str) -> None:
    settings = _settings(version)
    body = generation(logprobs=3, n=2, output_kind=2)

    whole = await generate(body, settings)
    chunks = await events(GENERATE, body, settings)

    for choice in whole["choices"]:
        parts = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert [len(part["token_ids"]) for part in parts] == [1] * 6
        assert [part["token_ids"][0] for part in parts] == choice["token_ids"]
        entries = [part["logprobs"]["content"][0] for part in parts]
        assert entries == choice["logprobs"]["content"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        if settings.semantics.masks_in_streams:
            assert [part["sampling_mask"][0] for part in parts] == choice["sampling_mask"]
        else:
            assert {part["sampling_mask"] for part in parts} == {None}


@EVERY_VERSION
@pytest.mark.parametrize(("logprobs", "listed"), [(0, 1), (1, 1), (3, 3), (20, 20)])
@pytest.mark.asyncio
async def test_how_many_candidates_a_version_lists(
    version: str, logprobs: int, listed: int
) -> None:
    answer = await generate(generation(logprobs=logprobs, top_k=1), _settings(version))

    content = answer["choices"][0]["logprobs"]["content"]
    assert {len(entry["top_logprobs"]) for entry in content} == {listed}


@pytest.mark.parametrize(("version", "listed"), [("0.32.0", {1}), ("0.33.0", {1, 2})])
@pytest.mark.asyncio
async def test_an_unranked_token_displaces_a_candidate_up_to_0_32(
    version: str, listed: set[int]
) -> None:
    body = generation(logprobs=1, top_k=20, temperature=2.0, max_tokens=20)

    answer = await generate(body, _settings(version))

    content = answer["choices"][0]["logprobs"]["content"]
    assert {len(entry["top_logprobs"]) for entry in content} == listed


@pytest.mark.parametrize(
    ("version", "listed"), [("0.29.0", 1), ("0.30.0", 1), ("0.31.0", 1024), ("0.33.0", 1024)]
)
@pytest.mark.asyncio
async def test_the_whole_vocabulary_is_listed_from_0_31_on(version: str, listed: int) -> None:
    settings = _settings(version, max_logprobs=-1)

    answer = await generate(generation(logprobs=-1, max_tokens=2), settings)

    content = answer["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in content] == [listed, listed]


@pytest.mark.asyncio
async def test_0_28_keeps_only_the_choice_that_ended_last() -> None:
    body = generation(n=3)

    assert [c["index"] for c in (await generate(body, _settings("0.28.0")))["choices"]] == [2]
    body["sampling_params"]["output_kind"] = 2
    for version in VERSIONS:
        choices = (await generate(body, _settings(version)))["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]


@pytest.mark.parametrize("version", ["0.30.0", "0.31.0"])
@pytest.mark.asyncio
async def test_without_scale_out_the_route_is_missing(version: str) -> None:
    async with client_of(_settings(version, enable_scale_out=False)) as client:
        response = await client.post(GENERATE, json=generation())

    assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
@pytest.mark.asyncio
async def test_without_scale_out_the_route_says_what_to_do(version: str) -> None:
    async with client_of(_settings(version, enable_scale_out=False)) as client:
        response = await client.post(GENERATE, json=generation())

    assert response.status_code == 403
    assert response.json()["error"]["type"] == "PermissionDeniedError"
    assert "--enable-scale-out" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("version", "settings"),
    [("0.28.0", {}), ("0.29.0", {}), ("0.30.0", {"tokens_only": True})],
)
@pytest.mark.asyncio
async def test_the_route_is_there_without_scale_out_where_it_is_not_needed(
    version: str, settings: dict[str, Any]
) -> None:
    await generate(generation(), _settings(version, enable_scale_out=False, **settings))


@pytest.mark.asyncio
async def test_a_tokens_only_server_refuses_stop_strings() -> None:
    settings = SimulatorSettings(tokens_only=True)
    async with client_of(settings) as client:
        response = await client.post(GENERATE, json=generation(stop=["x"]))

    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("stop strings are not supported")


@pytest.mark.asyncio
async def test_masks_are_null_where_the_server_returns_none() -> None:
    answer = await generate(generation(), SimulatorSettings(return_sampling_mask=False))

    assert answer["choices"][0]["sampling_mask"] is None


@EVERY_VERSION
@pytest.mark.asyncio
async def test_a_request_that_ends_the_engine_gets_vllms_500_and_so_does_every_later_one(
    version: str,
) -> None:
    async with client_of(_settings(version)) as client:
        for seed in (2**63, 7):
            response = await client.post(GENERATE, json=generation(seed=seed))
            assert response.status_code == 500
            assert response.json()["error"]["type"] == "InternalServerError"
            assert response.json()["error"]["message"] != ""
        assert (await client.get("/health")).status_code == 503


@pytest.mark.asyncio
async def test_prompt_logprobs_score_the_prompt() -> None:
    answer = await generate(generation(prompt_logprobs=1))

    first, *others = answer["prompt_logprobs"]
    assert first is None
    assert [str(token) in entry for token, entry in zip(PROMPT[1:], others, strict=True)] == [
        True,
        True,
    ]
    assert all(entry[name]["logprob"] <= 0 for entry in others for name in entry)


@pytest.mark.asyncio
async def test_output_mode_text_decodes_and_older_versions_ignore_it() -> None:
    body = {**generation(allowed_token_ids=[71], top_k=1, logprobs=1), "output_mode": "text"}

    new = await generate(body)
    old = await generate(body, _settings("0.31.0"))

    assert new["choices"][0]["text"] == "hhhhhh"
    assert new["choices"][0]["logprobs"]["content"][0]["token"] == "h"
    assert "text" not in old["choices"][0]
    assert old["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:71"


@pytest.mark.parametrize(
    ("version", "name", "status"),
    [
        ("0.28.0", "structured_outputs", 501),
        ("0.28.0", "trace_decode_token_ids", 200),
        ("0.29.0", "trace_decode_token_ids", 501),
        ("0.30.0", "prompt_logprob_token_ids", 200),
        ("0.31.0", "prompt_logprob_token_ids", 501),
    ],
)
@pytest.mark.asyncio
async def test_what_a_version_knows_and_the_simulation_does_not_is_refused(
    version: str, name: str, status: int
) -> None:
    async with client_of(_settings(version)) as client:
        response = await client.post(GENERATE, json=generation(**{name: [1]}))

    assert response.status_code == status, response.text


@pytest.mark.parametrize(("version", "status"), [("0.32.0", 400), ("0.33.0", 501)])
@pytest.mark.asyncio
async def test_derendered_answers_are_not_simulated(version: str, status: int) -> None:
    async with client_of(_settings(version)) as client:
        body = {**generation(), "output_mode": "derender"}
        response = await client.post(GENERATE, json=body)

    assert response.status_code == status
