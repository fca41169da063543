# syntax=docker/dockerfile:1
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python3 -m venv /opt/vllm-admission
# Dependencies first: this layer stays as long as the pins do.
COPY constraints.txt pyproject.toml README.md LICENSE ./
RUN mkdir app && touch app/__init__.py \
    && /opt/vllm-admission/bin/pip install --quiet -c constraints.txt . \
    && /opt/vllm-admission/bin/pip uninstall --quiet --yes vllm-admission
COPY app ./app
# Nothing is installed after this, by nobody.
RUN /opt/vllm-admission/bin/pip install --quiet --no-deps . \
    && /opt/vllm-admission/bin/pip uninstall --quiet --yes setuptools pip \
    && /opt/vllm-admission/bin/python -m compileall -q /opt/vllm-admission/lib

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="vllm-admission" \
      org.opencontainers.image.description="Configuration, request and replay gates in front of vLLM" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/vllm-admission /opt/vllm-admission
# Nothing is written at run time: works with a read-only root file system.
ENV PATH=/opt/vllm-admission/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["python3", "-c", \
    "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/livez', timeout=2)"]
ENTRYPOINT ["vllm-admission"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
