"""OpenTelemetry spans: one for the request that came in, one for each that goes to a backend.

Needs the extra `otel`. Where spans go is said with OpenTelemetry's own variables
(`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, …). Nothing that a
prompt or an answer says is ever put into a span.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from starlette.types import Scope

from app.errors import UnusableInput
from app.relay.headers import header
from app.relay.trace import TRACEPARENT, TRACESTATE
from app.telemetry.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

_SCOPE: Final = "vllm_admission"


class Tracing:
    """The tracer of this process."""

    def __init__(self, provider: TracerProvider) -> None:
        """Record with `provider`, which `aclose()` of this shuts down."""
        from opentelemetry import propagate, trace

        self._provider = provider
        self._trace = trace
        self._propagate = propagate
        self._tracer = provider.get_tracer(_SCOPE)

    @contextmanager
    def server_span(self, scope: Scope, exchange: Exchange) -> Iterator[None]:
        """Span one request that came in; inner applications find it as the trace's parent."""
        carrier = {
            name.decode(): value.decode("latin-1")
            for name in (TRACEPARENT, TRACESTATE)
            if (value := header(scope["headers"], name)) is not None
        }
        method = scope["method"]
        span = self._tracer.start_span(
            method,
            self._propagate.extract(carrier),
            kind=self._trace.SpanKind.SERVER,
            attributes={
                "http.request.method": method,
                "url.path": scope["path"],
                "url.scheme": scope.get("scheme", "http"),
            },
        )
        with self._trace.use_span(
            span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            scope["headers"] = self.with_context(scope["headers"])
            exchange.trace_id = f"{span.get_span_context().trace_id:032x}"
            try:
                yield
            finally:
                exchange.settle(scope)
                span.update_name(f"{method} {exchange.route}")
                span.set_attribute("http.route", exchange.route)
                span.set_attribute("vllm_admission.request_id", exchange.request_id)
                span.set_attribute("vllm_admission.outcome", exchange.outcome)
                if exchange.status:
                    span.set_attribute("http.response.status_code", exchange.status)
                if exchange.failed:
                    self.fail(span, exchange.outcome)

    def client_span(self, name: str, method: str) -> Span:
        """Begin a span for a request to a backend, below the current one; to be ended."""
        return self._tracer.start_span(
            name,
            kind=self._trace.SpanKind.CLIENT,
            attributes={"http.request.method": method},
        )

    def with_context(
        self, fields: list[tuple[bytes, bytes]], span: Span | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Give header fields that name `span`, or the current one, as the parent."""
        context = None if span is None else self._trace.set_span_in_context(span)
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, context)
        named = {name.encode(): value.encode("latin-1") for name, value in carrier.items()}
        kept = [field for field in fields if field[0] not in (TRACEPARENT, TRACESTATE, *named)]
        return [*kept, *named.items()]

    def fail(self, span: Span, reason: str) -> None:
        """Mark a span as failed, with a reason of a fixed list."""
        span.set_status(self._trace.StatusCode.ERROR)
        span.set_attribute("error.type", reason)

    def close(self) -> None:
        """Send what is left; takes as long as the exporter's own timeout at most."""
        self._provider.shutdown()


def make_tracing(exporter: SpanExporter | None = None) -> Tracing:
    """Make the tracing of this process, by OpenTelemetry's own environment variables.

    Args:
        exporter: where spans go; OTLP over HTTP unless given.

    Raises:
        UnusableInput: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    except ImportError as error:
        raise UnusableInput(
            f"VLLM_ADMISSION_TRACING is on, and OpenTelemetry cannot be imported ({error}); "
            "install it with: pip install 'vllm-admission[otel]'"
        ) from error
    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "vllm-admission"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if exporter is None:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    else:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider)
