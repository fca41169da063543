from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.api.schemas import VerdictModel, VerdictsModel
from app.main import create_app
from app.settings import Settings
from tests.support import client_of

BAD = "vllm serve m --return-sampling-mask"
GOOD = f"{BAD} --logprobs-mode processed_logprobs --enable-scale-out --generation-config vllm"
JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
YAML = {"content-type": "application/yaml"}


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(vllm_version="0.32.0", max_body_bytes=1_000_000)
    async with client_of(create_app(settings)) as client:
        yield client


async def verdict_of(client: httpx.AsyncClient, **request: Any) -> dict[str, Any]:
    response = await client.post("/validate", **request)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    VerdictModel.model_validate(body)
    return body


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "request_",
    [
        {"json": {"args": BAD.split()[2:]}},
        {"json": {"command": BAD}},
        {"json": {"config": {"model": "m", "return_sampling_mask": True}}},
        {"json": {"config": {"model": "m", "return-sampling-mask": True}}},
        {"json": {"config_yaml": "model: m\nreturn-sampling-mask: true\n"}},
        {"content": BAD, "headers": TEXT},
        {"content": "vllm serve m \\\n  --return-sampling-mask\n", "headers": TEXT},
        {"content": "model: m\nreturn-sampling-mask: true\n", "headers": YAML},
        {"content": BAD, "headers": {"content-type": "application/x-www-form-urlencoded"}},
    ],
    ids=["args", "command", "config", "dashes", "config_yaml", "text", "lines", "yaml", "curl"],
)
async def test_every_form_gets_the_same_verdict(
    client: httpx.AsyncClient, request_: dict[str, Any]
) -> None:
    verdict = await verdict_of(client, **request_)
    assert verdict["verdict"] == "rejected"
    errors = [f["rule"] for f in verdict["findings"] if f["severity"] == "error"]
    assert errors == ["sampling-mask-logprobs-mode"]


@pytest.mark.asyncio
async def test_the_corrected_command_is_accepted(client: httpx.AsyncClient) -> None:
    rejected = await verdict_of(client, json={"command": BAD})
    accepted = await verdict_of(client, json={"command": rejected["corrected"]["command"]})
    assert accepted["verdict"] == "accepted"


@pytest.mark.asyncio
async def test_the_engines_own_message_is_in_the_finding(client: httpx.AsyncClient) -> None:
    verdict = await verdict_of(client, json={"command": BAD})
    (error,) = [f for f in verdict["findings"] if f["severity"] == "error"]
    assert error["engine_message"].startswith(
        "sampling distribution replay requires logprobs_mode='processed_logprobs'"
    )


@pytest.mark.asyncio
async def test_assignments_before_the_command_count(client: httpx.AsyncClient) -> None:
    text = f"export VLLM_USE_V2_MODEL_RUNNER=0\n{GOOD}\n"
    verdict = await verdict_of(client, content=text, headers=TEXT)
    assert verdict["verdict"] == "rejected"


@pytest.mark.asyncio
async def test_several_versions_give_several_verdicts(client: httpx.AsyncClient) -> None:
    speculative = GOOD + ' --speculative-config \'{"method":"ngram","num_speculative_tokens":3}\''
    versions = ["0.31.0", "0.32.0"]
    response = await client.post(
        "/validate", json={"id": 7, "command": speculative, "vllm_versions": versions}
    )
    body = response.json()
    VerdictsModel.model_validate(body)
    assert body["id"] == 7
    assert not body["accepted"]
    assert [v["verdict"] for v in body["verdicts"]] == ["rejected", "accepted"]


@pytest.mark.asyncio
async def test_the_query_names_the_version_of_a_plain_text_body(client: httpx.AsyncClient) -> None:
    url = "/validate?vllm_version=0.28.0"
    body = (await client.post(url, content="vllm serve m", headers=TEXT)).json()
    assert body["vllm_version"] == "0.28.0"


@pytest.mark.asyncio
async def test_curl_can_fail_on_a_rejection(client: httpx.AsyncClient) -> None:
    assert (await client.post("/validate?on_reject=422", content=BAD)).status_code == 422
    assert (await client.post("/validate?on_reject=422", content=GOOD)).status_code == 200


@pytest.mark.asyncio
async def test_plain_text_is_a_report_for_people(client: httpx.AsyncClient) -> None:
    response = await client.post("/validate", content=BAD, headers={"accept": "text/plain"})
    assert response.headers["content-type"].startswith("text/plain")
    assert "rejected" in response.text
    assert "sampling-mask-logprobs-mode" in response.text
    assert "--logprobs-mode processed_logprobs" in response.text


@pytest.mark.asyncio
async def test_sarif_is_given_to_who_asks_for_it(client: httpx.AsyncClient) -> None:
    headers = {"accept": "application/sarif+json"}
    response = await client.post("/validate", content=BAD, headers=headers)
    assert response.headers["content-type"] == "application/sarif+json"
    assert response.json()["version"] == "2.1.0"


@pytest.mark.asyncio
async def test_a_gzipped_body_is_read(client: httpx.AsyncClient) -> None:
    packed = gzip.compress(BAD.encode())
    headers = TEXT | {"content-encoding": "gzip"}
    assert (await verdict_of(client, content=packed, headers=headers))["verdict"] == "rejected"


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (b'{"args": [', JSON, 400, {"line": 1, "column": 11}),
        (b'{"command": "vllm serve m", "comand": ""}', JSON, 400, {"pointer": "/comand"}),
        (b'{"\\ud800": 1, "args": []}', JSON, 400, {"pointer": "/\ud800"}),
        (b"[]", JSON, 400, {}),
        (b'{"args": ["m", 3]}', JSON, 400, {"pointer": "/args/1"}),
        (b"{}", JSON, 400, {}),
        (b'{"args": ["m"], "command": "vllm serve m"}', JSON, 400, {}),
        (b"vllm serve 'm", TEXT, 400, {"line": 1, "column": 12}),
        (b"vllm serve \xff", TEXT, 400, {"line": 1, "column": 12}),
        (b"model: m\n\tport: 1\n", YAML, 400, {"line": 2, "column": 1}),
        (BOMB.encode(), YAML, 400, {}),
        (b"apiVersion: v1\nkind: Pod\nspec: {}\n", YAML, 400, {"code": "no-server"}),
        (b"x" * 1_000_001, TEXT, 413, {}),
        (b"<a/>", {"content-type": "application/xml"}, 415, {}),
    ],
    ids=[
        "broken-json",
        "unknown-key",
        "lone-surrogate",
        "not-an-object",
        "number-in-args",
        "empty",
        "two-forms",
        "unclosed-quote",
        "not-utf-8",
        "broken-yaml",
        "alias-bomb",
        "kubernetes",
        "too-large",
        "xml",
    ],
)
async def test_unusable_input_is_a_problem_that_says_where(
    client: httpx.AsyncClient,
    body: bytes,
    headers: dict[str, str],
    status: int,
    says: dict[str, Any],
) -> None:
    response = await client.post("/validate", content=body, headers=headers)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert problem["detail"]
    assert problem["instance"] == f"urn:request:{response.headers['x-request-id']}"
    if says:
        entry = problem["errors"][0]
        assert {name: entry.get(name) for name in says} == says


@pytest.mark.asyncio
async def test_an_unknown_version_lists_the_known_ones(client: httpx.AsyncClient) -> None:
    response = await client.post("/validate", json={"args": ["m"], "vllm_version": "0.27.0"})
    assert response.status_code == 422
    assert "0.28.0" in response.json()["detail"]


@pytest.mark.asyncio
async def test_an_unknown_flag_is_a_finding_with_a_suggestion(client: httpx.AsyncClient) -> None:
    verdict = await verdict_of(client, content="vllm serve m --return-sampling-masks", headers=TEXT)
    (error,) = [f for f in verdict["findings"] if f["severity"] == "error"]
    assert "--return-sampling-mask" in json.dumps(error["fix"])
    assert error["location"]["line"] == 1
    assert error["location"]["column"] == 14


@pytest.mark.asyncio
async def test_a_body_that_declares_too_much_is_not_read(client: httpx.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    headers = TEXT | {"content-length": str(10**12)}
    assert (await client.post("/validate", content=b"", headers=headers)).status_code == 413
    assert (await client.post("/validate", content=endless(), headers=TEXT)).status_code == 413


@pytest.mark.asyncio
async def test_a_wrong_parameter_is_a_problem_too(client: httpx.AsyncClient) -> None:
    response = await client.post("/validate?on_reject=many", content=GOOD)
    assert response.status_code == 400
    assert response.json()["errors"][0]["pointer"] == "/on_reject"


@pytest.mark.asyncio
async def test_a_misspelt_parameter_is_not_ignored(client: httpx.AsyncClient) -> None:
    response = await client.post("/validate?vllm_versions=0.28.0", content=GOOD)
    assert response.status_code == 400
    (problem,) = response.json()["errors"]
    assert problem["pointer"] == "/vllm_versions"
    assert "vllm_version and on_reject" in problem["detail"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("request_", "value"),
    [
        ({"content": "vllm serve m --seed 1 --gpu-memory-utilization nan"}, "NaN"),
        ({"content": "vllm serve m --additional-config.a 1e999"}, {"a": "Infinity"}),
        ({"content": "model: m\nadditional-config: {a: -.inf}\n"}, {"a": "-Infinity"}),
        ({"content": 'vllm serve m --additional-config "{\\"a\\": \\"$A\\"}"'}, {"a": "$A"}),
        ({"content": b'{"args": ["m", "--served-model-name", "\\ud800"]}'}, ["\ud800"]),
    ],
    ids=["flag", "dotted", "yaml", "variable", "surrogate"],
)
async def test_values_that_json_cannot_hold_are_answered_too(
    client: httpx.AsyncClient, request_: dict[str, Any], value: Any
) -> None:
    body = await verdict_of(client, **request_)
    given = [setting["value"] for setting in body["settings"]["given"].values()]
    assert value in given


MANIFESTS = """\
apiVersion: v1
kind: Pod
metadata: {name: bad}
spec:
  containers:
  - {name: c, image: 'vllm/vllm-openai:v0.32.0', args: [m, --return-sampling-mask]}
---
apiVersion: v1
kind: Pod
metadata: {name: good}
spec:
  containers:
  - {name: c, image: 'vllm/vllm-openai:v0.32.0', args: [m]}
"""


@pytest.mark.asyncio
async def test_manifests_come_as_yaml_or_in_an_envelope(client: httpx.AsyncClient) -> None:
    plain = await client.post("/validate", content=MANIFESTS, headers=YAML)
    enveloped = await client.post("/validate", json={"kubernetes": MANIFESTS})
    assert plain.json() == enveloped.json()
    body = plain.json()
    VerdictsModel.model_validate(body)
    bad, good = body["verdicts"]
    assert (bad["subject"], bad["verdict"]) == ("Pod/bad c", "rejected")
    assert (good["subject"], good["verdict"]) == ("Pod/good c", "accepted")
    [error] = [f for f in bad["findings"] if f["severity"] == "error"]
    assert error["location"]["source"] == "kubernetes"
    assert (error["location"]["line"], error["location"]["column"]) == (6, 60)
    again = await client.post("/validate", json={"kubernetes": bad["corrected"]["kubernetes"]})
    assert again.json()["accepted"] is True


@pytest.mark.asyncio
async def test_an_object_may_come_as_json(client: httpx.AsyncClient) -> None:
    container = {"name": "c", "image": "vllm/vllm-openai:v0.32.0", "args": ["m"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}}
    verdict = await verdict_of(client, json=pod)
    assert verdict["accepted"] is True
    assert verdict["subject"] == "Pod c"
