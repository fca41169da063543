"""Settings of the service, from environment variables with the prefix VLLM_ADMISSION_.

`python -m app.settings` writes docs/settings.md.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import httpx
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from app.errors import UnusableInput
from app.kubernetes.mode import Mode
from app.proposal.suppression import Profile
from app.telemetry.access import AccessLog

PREFIX: Final = "VLLM_ADMISSION_"
# Timers and sizes above these overflow somewhere below us; no operator means them.
_MOST_NUMBER: Final = 1e9
_MOST_INTEGER: Final = 2**53
# What Kubernetes tells every pod of a Service named vllm-admission, and what the lab reads.
_NOT_OURS: Final = re.compile(
    r"(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT|PORT_\d+_(TCP|UDP|SCTP)\w*)|LAB_\w+"
)


class Settings(BaseSettings):
    """Everything that can be configured; built once by the edge and passed on.

    Attributes are documented in docs/settings.md, which is generated from the descriptions.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True
    )

    backend_url: str | None = Field(
        None,
        description="Base URL of the vLLM backend, or of several with commas between them; the "
        "healthy one with the fewest requests in flight is asked. Without it proxied routes "
        "answer 503. See docs/fleet.md.",
    )
    serve_config: str | None = Field(
        None,
        description="The configuration the backend runs with, which requests are checked "
        "against: a file, or the text itself, in any proposal form.",
    )
    vllm_version: str | None = Field(
        None, description="The vLLM version assumed where a proposal names none; default newest."
    )
    catalogue_dir: Path | None = Field(
        None, description="A directory of catalogues of forks and nightlies, beside the shipped."
    )
    profile: Profile = Field(
        Profile.DEFAULT,
        description="`default`, or `strict`: then a warning too makes a verdict `rejected`.",
    )
    limits: dict[str, float] = Field(
        {},
        description="The most that settings may be at this site, as JSON by vLLM's own names: "
        '`{"max_model_len": 32768, "max_logprobs": 1024}`. What is above is rejected as '
        "`site-limit`.",
    )
    model_root: Path | None = Field(
        None,
        description="A directory of models: where a proposal brings no `model_config`, the "
        "config.json of its model is looked for there. Not for admission reviews. The request gate "
        "looks there for generation_config.json, with the server's sampling defaults.",
    )
    hub_url: str | None = Field(
        None,
        description="A model hub with the layout of huggingface.co, to fetch those from, "
        "at most 1 MiB each in 5 s, kept for ten minutes. Without it nothing is fetched.",
    )
    hub_token: SecretStr | None = Field(None, description="Bearer token for that hub.")
    max_body_bytes: int = Field(
        8 * 1024 * 1024, gt=0, description="Largest body taken by /validate, in bytes."
    )
    admission_mode: Mode = Field(
        Mode.WARN,
        description="What /admission/validate does with findings: `audit`, `warn` or `enforce`. "
        "/admission/validate/{mode} says it in the path.",
    )
    max_review_bytes: int = Field(
        8 * 1024 * 1024, gt=0, description="Largest admission review taken, in bytes."
    )
    max_replay_bytes: int = Field(
        256 * 1024 * 1024, gt=0, description="Largest body taken by /replay, in bytes."
    )
    max_replay_line_bytes: int = Field(
        256 * 1024 * 1024,
        gt=0,
        description="Longest line of a replay batch, in bytes, decompressed; bounds its memory.",
    )
    replay_workers: int = Field(
        2, gt=0, le=64, description="Processes that replay responses, for all requests together."
    )
    max_request_bytes: int = Field(
        64 * 1024 * 1024, gt=0, description="Largest request body relayed, in bytes."
    )
    request_body_grace: float = Field(
        30.0, gt=0, description="Seconds that every request body may take to arrive."
    )
    request_body_min_rate: float = Field(
        1024.0,
        gt=0,
        description="Bytes per second at which a request body must arrive after that; a slower "
        "one is answered with 408.",
    )
    max_header_bytes: int = Field(
        64 * 1024,
        gt=0,
        description="Largest request line and header taken, in bytes; 431 above it.",
    )
    header_timeout: float = Field(
        30.0, gt=0, description="Seconds that a request's header may take to arrive."
    )
    max_in_flight: int | None = Field(
        16384, gt=0, description="Most requests relayed at a time; 503 and Retry-After above it."
    )
    max_queue: int = Field(
        0, ge=0, description="Most requests that wait for one of those places instead."
    )
    queue_timeout: float = Field(5.0, gt=0, description="Seconds that a request waits so.")
    connect_timeout: float = Field(
        5.0, gt=0, description="Seconds to wait for a connection to the backend."
    )
    connect_retries: int = Field(
        2,
        ge=0,
        description="How often a request is tried again that got no connection, so that no byte "
        "of it was sent; never after that.",
    )
    idle_timeout: float = Field(
        600.0, gt=0, description="Seconds to wait for the next bytes of the backend."
    )
    write_timeout: float = Field(
        300.0, gt=0, description="Seconds that a client may leave unread what waits for it."
    )
    max_stream_seconds: float | None = Field(
        None, gt=0, description="Longest that an exchange may take in all; default no bound."
    )
    max_websocket_bytes: int = Field(
        16 * 1024 * 1024, gt=0, description="Longest WebSocket message relayed, in bytes."
    )
    breaker_failures: int = Field(
        5,
        gt=0,
        description="Requests in a row without any answer, after which a backend is left alone "
        "and requests for it get 503.",
    )
    breaker_open_seconds: float = Field(
        5.0, gt=0, description="Seconds until one request may try such a backend again."
    )
    breaker_successes: int = Field(
        2, gt=0, description="Answers in a row that make it a healthy backend again."
    )
    health_interval: float = Field(
        2.0,
        ge=0,
        description="Seconds between questions to the `/health` of each backend where there are "
        "several, or readiness hangs on it; one that is not well gets requests only where none is. "
        "0 asks never.",
    )
    unready_without_backend: bool = Field(
        False,
        description="Fail /readyz until a backend is well, from the third round of questions in a "
        "row on in which none is, and until the second in a row in which one is again. For a proxy "
        "of its own; in vLLM's pod leave it to vLLM's readiness probe.",
    )
    drain_delay: float = Field(
        0.0,
        ge=0,
        description="Seconds after SIGTERM in which /readyz already fails and requests are still "
        "taken, so that load balancers can notice.",
    )
    drain_seconds: float = Field(
        25.0,
        ge=0,
        description="Seconds that requests in flight may take after that, before they are ended; "
        "new ones get 503 meanwhile. Keep the sum below the pod's grace period.",
    )
    drift_interval: float = Field(
        60.0,
        ge=0,
        description="Seconds between comparisons of VLLM_ADMISSION_SERVE_CONFIG with what the "
        "backend says of itself; 0 compares never. Shown in /readyz?verbose and the metrics.",
    )
    drift_is_unready: bool = Field(
        False, description="Fail /readyz while the backend differs from the configuration."
    )
    request_rules: dict[str, str] = Field(
        {},
        description="What is done about findings of request rules, as JSON: rule id to `reject`, "
        "`warn` (in a response header), `repair` where the rule has one, or `off`. A rule that is "
        "not named rejects errors and tells of warnings.",
    )
    request_strict: bool = Field(
        False, description="Reject requests with members that the route does not have."
    )
    request_max_prompt_logprobs: int = Field(
        100_000_000,
        gt=0,
        description="Most prompt tokens times prompt logprobs that one request may ask for.",
    )
    request_max_bad_word_bytes: int = Field(
        4096,
        gt=0,
        description="Most bytes of `bad_words` together where their tokens could not be counted "
        "and too many end the engine.",
    )
    request_characters_per_token: int | None = Field(
        None,
        gt=0,
        description="The tokenizer's longest token in characters, which bounds how short a text "
        "can be in tokens. Without it the length of a text prompt is left to vLLM.",
    )
    request_repair_top_k: int = Field(
        20,
        gt=0,
        description="The `top_k` that the repair of `sampling-mask-top-k` puts in, at most "
        "`--max-logprobs`.",
    )
    inject_seed: bool = Field(
        False,
        description="Give generations without a seed one that follows from the request id, and "
        "tell it in `x-vllm-admission-seed`. See docs/end_to_end.md.",
    )
    replay_sample: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of generations that are replayed after they were relayed, 0 to 1.",
    )
    replay_buffer_bytes: int = Field(
        64 * 1024 * 1024,
        gt=0,
        description="Most bytes kept at a time for such replays, of all responses together.",
    )
    replay_queue: int = Field(
        64, gt=0, description="Most responses that wait to be replayed; more are dropped."
    )
    replay_wait: float = Field(
        10.0,
        gt=0,
        description="Seconds a response waits for the verdict that its request asked for.",
    )
    probe_max_requests: int = Field(
        256, gt=0, description="Most requests that one POST /replay/probe may send."
    )
    probe_max_tokens: int = Field(
        1024, gt=0, description="Most tokens that each request of a probe may generate."
    )
    probe_max_concurrency: int = Field(32, gt=0, description="Most requests of a probe at a time.")
    probe_max_seconds: float = Field(
        120.0, gt=0, description="Seconds after which a probe sends nothing more."
    )
    tls_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="A second port, with TLS: what a Kubernetes API server calls. The plain port "
        "stays for probes, metrics and the proxy.",
    )
    tls_cert_file: Path | None = Field(
        None,
        description="Certificate chain of that port, PEM. Taken anew when the file changes.",
    )
    tls_key_file: Path | None = Field(None, description="Its private key, PEM.")
    log_level: str = Field("info", description="Log level: debug, info, warning or error.")
    access_log: AccessLog = Field(
        AccessLog.ALL,
        description="Which requests are logged: all, errors (and clients that left), or off.",
    )
    tracing: bool = Field(
        False,
        description="Send OpenTelemetry spans, by the standard OTEL_… variables; needs the extra "
        "`otel`. See docs/operations.md.",
    )
    workers: int = Field(
        1,
        gt=0,
        le=64,
        description="Processes that serve; also `serve --workers`. Limits hold for each of them.",
    )

    @field_validator("*")
    @classmethod
    def _is_usable(cls, value: object) -> object:
        most = _MOST_INTEGER if isinstance(value, int) else _MOST_NUMBER
        if isinstance(value, int | float) and not value <= most:
            raise ValueError(f"must be at most {most:.0f}")
        return value

    @field_validator("hub_url")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        try:
            url = None if value is None else httpx.URL(value)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ValueError(f"is no URL: {error}") from None
        if url is not None and (url.scheme not in ("http", "https") or not url.host):
            raise ValueError("must begin with http:// or https:// and name a host")
        return value

    @field_validator("model_root")
    @classmethod
    def _is_directory(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_dir():
            raise ValueError(f"{value} is no directory")
        return value


def read_settings() -> Settings:
    """Read the environment.

    Raises:
        UnusableInput: a variable has a value that it cannot have; all such are named, without
            the values of those that hold secrets.
    """
    try:
        return Settings()
    except SettingsError as error:
        name = re.search(r'field "(\w+)"', str(error))
        which = f"{PREFIX}{name[1].upper()}" if name else "a setting"
        raise UnusableInput(f"{which} is no JSON: {error.__cause__ or error}") from None
    except ValidationError as error:
        raise UnusableInput("; ".join(_said(error))) from None


def _said(error: ValidationError) -> Iterator[str]:
    for entry in error.errors(include_url=False):
        name, *inner = map(str, entry["loc"])
        place = "".join(f" ({part})" for part in inner)
        given = "" if Settings.model_fields[name].annotation == SecretStr | None else entry["input"]
        text = entry["msg"].removeprefix("Value error, ")
        yield f"{PREFIX}{name.upper()}{place}: {text}" + (f", got {given!r}" if given != "" else "")


def unknown_variables(environment: Iterable[str]) -> dict[str, str | None]:
    """Give the variables with our prefix that are no setting, each with the nearest that is."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    found = {}
    for name in sorted(environment):
        upper = name.upper()  # as pydantic-settings reads them
        if not upper.startswith(PREFIX) or upper in known:
            continue
        if not _NOT_OURS.fullmatch(upper.removeprefix(PREFIX)):
            found[name] = next(iter(difflib.get_close_matches(upper, known, n=1)), None)
    return found


def settings_markdown() -> str:
    """Render the settings as the table in docs/settings.md."""
    rows = [
        "# Settings",
        "",
        "Read from the environment when the service starts. Generated by `make docs`.",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        rows.append(f"| `{PREFIX}{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(settings_markdown())
