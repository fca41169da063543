from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from app.main import create_app
from app.settings import Settings
from tests.support import client_of

ADMITTED = (
    "vllm serve m --return-sampling-mask --logprobs-mode processed_logprobs --enable-scale-out"
)
REJECTED = "vllm serve m --return-sampling-mask"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("serve_config", "status", "says"),
    [
        (None, 200, "ok"),
        (ADMITTED, 200, "ok"),
        (REJECTED, 503, "sampling-mask-logprobs-mode"),
        ("vllm serve 'm", 503, "quot"),
        ("vllm serve m --no-such-flag", 503, "no-such-flag"),
    ],
)
async def test_readiness_says_why_not(serve_config: str | None, status: int, says: str) -> None:
    settings = Settings(serve_config=serve_config, vllm_version="0.32.0")
    async with client_of(create_app(settings)) as client:
        ready = await client.get("/readyz")
        assert ready.status_code == status
        assert says in ready.text
        assert (await client.get("/livez")).text == "ok\n"


@pytest.mark.asyncio
@pytest.mark.parametrize(("serve_config", "told"), [(ADMITTED, []), (REJECTED, ["error"])])
async def test_a_configuration_that_is_not_admitted_is_told_at_start(
    serve_config: str, told: list[str]
) -> None:
    app = create_app(Settings(serve_config=serve_config, vllm_version="0.32.0"))
    with capture_logs() as logs:
        async with app.router.lifespan_context(app):
            pass
    found = [entry for entry in logs if entry["event"] == "the configuration is not admitted"]
    assert [entry["log_level"] for entry in found] == told
    assert all("sampling-mask-logprobs-mode" in entry["reason"] for entry in found)


@pytest.mark.asyncio
async def test_verbose_readiness_lists_every_check() -> None:
    settings = Settings(serve_config=ADMITTED, vllm_version="0.32.0")
    async with client_of(create_app(settings)) as client:
        text = (await client.get("/readyz?verbose")).text
    assert "[+]catalogue ok" in text
    assert "[+]serve-config ok" in text


@pytest.mark.asyncio
async def test_metrics_are_in_the_prometheus_format() -> None:
    async with client_of(create_app(Settings())) as client:
        response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert "# TYPE vllm_admission_" in response.text


@pytest.mark.asyncio
async def test_without_a_backend_relayed_routes_say_so_in_vllms_shape() -> None:
    async with client_of(create_app(Settings())) as client:
        response = await client.post("/v1/completions", json={})
    assert response.status_code == 503
    assert "VLLM_ADMISSION_BACKEND_URL" in response.json()["error"]["message"]


@pytest.mark.asyncio
async def test_a_safe_request_id_is_kept_and_an_unsafe_one_replaced() -> None:
    async with client_of(create_app(Settings())) as client:
        kept = await client.get("/livez", headers={"x-request-id": "rollout-17"})
        replaced = await client.get("/livez", headers={"x-request-id": "a b<script>"})
    assert kept.headers["x-request-id"] == "rollout-17"
    assert "<" not in replaced.headers["x-request-id"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/validate", "POST"),
        ("POST", "/livez", "GET"),
        ("HEAD", "/readyz", "GET"),
        ("DELETE", "/rules/sampling-mask-runner", "GET"),
        ("OPTIONS", "/replay", "POST"),
    ],
)
async def test_our_own_paths_refuse_other_methods_themselves(
    method: str, path: str, allow: str
) -> None:
    async with client_of(create_app(Settings())) as client:
        response = await client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allow
