"""Looking up config.json: in a directory, on a hub, and nowhere else."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.catalogue import CatalogueLibrary
from app.main import create_app
from app.model_facts import MAX_BYTES, ModelConfigs, Unavailable, with_model_configs
from app.proposal.envelope import read_envelope
from app.proposal.proposal import Proposal
from app.settings import Settings
from tests.support import client_of

LIBRARY = CatalogueLibrary()
DENSE = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


class Hub:
    """A hub of one model, over a socket; it counts who asks."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.answers: dict[str, bytes] = {
            "/org/model/resolve/main/config.json": json.dumps(DENSE).encode(),
            "/org/model/resolve/v2/config.json": json.dumps(DENSE | {"v": 2}).encode(),
            "/org/large/resolve/main/config.json": b" " * (MAX_BYTES + 1),
            "/org/broken/resolve/main/config.json": b"<html>",
            "/org/list/resolve/main/config.json": b"[]",
        }
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.asked.append((self.path, self.headers.get("authorization")))
                body = hub.answers.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("content-length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def hub() -> Iterator[Hub]:
    served = Hub()
    thread = threading.Thread(target=served.server.serve_forever, args=(0.01,))
    thread.start()
    yield served
    served.server.shutdown()
    thread.join()
    served.server.server_close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "models" / "org" / "here").mkdir(parents=True)
    (tmp_path / "models" / "org" / "here" / "config.json").write_text(json.dumps(DENSE))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "config.json").write_text("{}")
    return tmp_path / "models"


def completed(configs: ModelConfigs, *args: str, **members: Any) -> Proposal:
    envelope = read_envelope({"args": list(args), **members})
    return with_model_configs(envelope, LIBRARY, "0.32.0", configs).proposal


def told(proposal: Proposal) -> dict[str, str]:
    return {finding.rule: finding.message for finding in proposal.findings}


@pytest.mark.parametrize("by_path", [True, False])
def test_a_model_of_the_directory_is_found_by_name_and_by_path(root: Path, by_path: bool) -> None:
    model = str(root / "org" / "here") if by_path else "org/here"
    proposal = completed(ModelConfigs(root), model)
    assert proposal.model_config == DENSE
    assert "config.json at" in told(proposal)["model-config-found"]


@pytest.mark.parametrize("model", ["../secret", "org/../../secret", "/etc", "org/none"])
def test_nothing_outside_the_directory_is_read(root: Path, model: str) -> None:
    proposal = completed(ModelConfigs(root), model)
    assert proposal.model_config is None
    assert f"{model} is not in" in told(proposal)["model-config-unavailable"]


def test_a_link_out_of_the_directory_is_not_followed(root: Path) -> None:
    (root / "out").symlink_to(root.parent / "secret")
    assert completed(ModelConfigs(root), "out").model_config is None


def test_what_the_proposal_brings_counts(root: Path) -> None:
    own = {"model_type": "llama"}
    proposal = completed(ModelConfigs(root), "org/here", model_config=own)
    assert proposal.model_config == own
    assert not proposal.findings


def test_the_hub_is_asked_once_and_by_revision(hub: Hub) -> None:
    configs = ModelConfigs(hub=hub.url, token="t")
    for _ in range(3):
        assert completed(configs, "org/model").model_config == DENSE
    assert hub.asked == [("/org/model/resolve/main/config.json", "Bearer t")]
    assert completed(configs, "org/model", "--revision", "v2").model_config == DENSE | {"v": 2}


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("org/none", "answered 404"),
        ("org/large", "is larger than"),
        ("org/broken", "is no JSON"),
        ("org/list", "is no JSON object"),
        ("model", "is no name of a repository"),
        ("org/..", "is no name of a repository"),
    ],
)
def test_a_hub_that_does_not_help_is_told_and_the_verdict_goes_on(
    hub: Hub, model: str, why: str
) -> None:
    configs = ModelConfigs(hub=hub.url)
    for _ in range(2):
        assert why in told(completed(configs, model))["model-config-unavailable"]
    assert len(hub.asked) <= 1


def test_a_hub_that_is_not_there_is_told() -> None:
    with pytest.raises(Unavailable, match="could not be read"):
        ModelConfigs(hub="http://127.0.0.1:9").find("org/model", None)


@pytest.mark.parametrize("revision", ["..", "a b", "../../x"])
def test_an_odd_revision_is_not_asked_for(revision: str) -> None:
    with pytest.raises(Unavailable, match="revision"):
        ModelConfigs(hub="http://127.0.0.1:9").find("org/model", revision)


@pytest.mark.parametrize("args", [["$MODEL"], ["--port", "8000"]])
def test_a_model_that_is_not_named_is_not_looked_for(hub: Hub, args: list[str]) -> None:
    body = {"command": "vllm serve " + " ".join(args)}
    envelope = read_envelope(body)
    completed_envelope = with_model_configs(envelope, LIBRARY, "0.32.0", ModelConfigs(hub=hub.url))
    assert completed_envelope.proposal.model_config is None
    assert not hub.asked


@pytest.mark.asyncio
async def test_the_service_looks_where_its_settings_say(root: Path, hub: Hub) -> None:
    settings = Settings(model_root=root, hub_url=hub.url)
    async with client_of(create_app(settings)) as client:
        for model in ("org/here", "org/model"):
            answer = await client.post("/validate", json={"args": [model]})
            assert "model-config-found" in [f["rule"] for f in answer.json()["findings"]]
    async with client_of(create_app(Settings())) as client:
        answer = await client.post("/validate", json={"args": [str(root / "org" / "here")]})
        assert not [f for f in answer.json()["findings"] if f["rule"].startswith("model-config")]
