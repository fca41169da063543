"""How long an admission review of a 30 KB Deployment takes, from the bytes to the answer's bytes.

    python benchmarks/admission_bench.py [--reviews 400] [--version 0.32.0]

Each review is another one: its command differs, so that nothing is remembered from the one before.
Half of them are creations, half updates with the old object (judged where the new one is refused).
The share of a review that is decoding and encoding JSON is measured on the same bodies. Times are
CPU times on one core. Exit code 1 if the 99th percentile is 10 ms or more.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.catalogue import CatalogueLibrary
from app.documents import decode_json, encode_json
from app.event_loop import keep_for_good
from app.kubernetes.mode import Mode
from app.kubernetes.review import Decision, mutated, validated
from app.proposal.envelope import Envelope
from app.validation import judge
from app.verdict.verdict import Verdict

GOAL_MS = 10.0
SIZE = 30_000


def deployment(number: int, *, broken: bool) -> dict[str, Any]:
    """Make a Deployment of about 30 KB: vLLM, a sidecar, and much else that objects carry."""
    args = ["Qwen/Qwen3-8B", "--max-model-len", str(4096 + number), "--served-model-name", "qwen"]
    args += ["--tensor-parallel-size", "2", "--enable-prefix-caching", "--port", "8000"]
    args += ["--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 3})]
    if broken:
        args.append("--return-sampling-mask")
    env = [{"name": f"SETTING_{i}", "value": f"value of the setting {i}"} for i in range(60)]
    probe = {"httpGet": {"path": "/health", "port": 8000}, "failureThreshold": 180}
    engine = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": args,
        "env": [*env, {"name": "VLLM_LOGGING_LEVEL", "value": "INFO"}],
        "resources": {"limits": {"nvidia.com/gpu": "2", "memory": "64Gi"}},
        "startupProbe": probe,
        "readinessProbe": probe,
    }
    sidecar = {"name": "logs", "image": "fluent/fluent-bit:4", "env": env}
    found: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "qwen", "namespace": "models", "annotations": {}},
        "spec": {"template": {"spec": {"containers": [engine, sidecar]}}},
    }
    fields: list[Any] = []
    found["metadata"]["managedFields"] = fields
    while len(json.dumps(found)) < SIZE:
        paths: dict[str, Any] = {
            f"f:path-{len(fields)}-{i}": {".": {}, "f:value": {}} for i in range(40)
        }
        fields.append({"manager": "kubectl", "operation": "Update", "fieldsV1": paths})
    return found


def review(number: int) -> bytes:
    """Make a review, every other one of an update, every fourth one of what vLLM refuses."""
    subject = deployment(number, broken=number % 4 == 0)
    request: dict[str, Any] = {
        "uid": f"uid-{number}",
        "operation": "UPDATE" if number % 2 else "CREATE",
        "namespace": "models",
        "object": subject,
        "oldObject": deployment(number + 1, broken=False) if number % 2 else None,
    }
    data = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(data).encode()


def percentiles(work: Callable[[bytes], object], bodies: Sequence[bytes]) -> tuple[float, float]:
    """Give the median and the 99th percentile of the time of one body, in ms of CPU time."""
    for body in bodies[:20]:
        work(body)
    times = []
    for body in bodies:
        began = time.process_time()
        work(body)
        times.append((time.process_time() - began) * 1000)
    times.sort()
    return times[len(times) // 2], times[int(len(times) * 0.99)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reviews", type=int, default=400)
    parser.add_argument("--version", default="0.32.0")
    options = parser.parse_args()
    library = CatalogueLibrary()

    def judging(*, mend: bool) -> Callable[[Envelope], tuple[Verdict, ...]]:
        return lambda envelope: judge(envelope, library, options.version, mend=mend)

    plain, mending = judging(mend=False), judging(mend=True)

    def decide(body: bytes) -> Decision:
        return validated(decode_json(body.decode()), Mode.ENFORCE, plain, "the page")

    def decode_alone(body: bytes) -> bytes:
        return encode_json(decode_json(body.decode()))

    def validate(body: bytes) -> bytes:
        return encode_json(decide(body).body)

    def mutate(body: bytes) -> bytes:
        return encode_json(mutated(decode_json(body.decode()), mending, "").body)

    bodies = [review(number) for number in range(options.reviews)]
    keep_for_good()  # as the service does when it has started
    refused = sum(decide(body).decision == "refused" for body in bodies)
    size = sum(map(len, bodies)) / len(bodies) / 1000
    print(f"{len(bodies)} reviews of {size:.0f} KB on average, {refused} refused")
    base, _ = percentiles(decode_alone, bodies)
    results = {}
    for name, work in (("validate", validate), ("mutate", mutate)):
        half, most = results[name] = percentiles(work, bodies)
        ratio = half / base
        print(f"{name:9} p50 {half:5.2f} ms  p99 {most:5.2f} ms  ({ratio:.1f}x JSON alone)")
    print(f"JSON alone p50 {base:5.2f} ms")
    return int(any(most >= GOAL_MS for _, most in results.values()))


if __name__ == "__main__":
    sys.exit(main())
