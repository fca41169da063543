"""What is said of Kubernetes objects while they are read."""

from __future__ import annotations

from typing import Final

from app.rules.declaration import Declaration
from app.serve_config.declarations.building import parser_rule
from app.verdict.finding import Severity

_KUBELET: Final = "Kubernetes, pkg/kubelet/kubelet_pods.go"
_RUNTIME: Final = "containers:\n- name: c\n  image: nvcr.io/nvidia/ai-dynamo/vllm-runtime"
_IMAGE: Final = "image: vllm/vllm-openai:v0.32.0"

_ANNOTATED: Final = (
    "kind: Pod\nmetadata: {annotations: {vllm-admission/%s}}\nspec:\n  containers:\n"
    f"  - {{name: c, {_IMAGE}, args: [m, --gpu-memory-utilization, '0.5']}}\n"
)

DECLARATIONS: Final[tuple[Declaration, ...]] = (
    parser_rule(
        "kubernetes-not-a-string",
        Severity.ERROR,
        "A number or boolean stands where Kubernetes wants a string",
        "`command`, `args` and the values of `env` are strings. A number or `true` without quotes "
        "is none, and the API server refuses the object.",
        "Put it in quotes.",
        source="Kubernetes, api/core/v1 Container",
        bad=f"containers:\n- {{name: c, {_IMAGE}, args: [org/model, --port, 8001]}}\n",
        good=f'containers:\n- {{name: c, {_IMAGE}, args: [org/model, --port, "8001"]}}\n',
    ),
    parser_rule(
        "kubernetes-environment-unseen",
        Severity.INFO,
        "Variables of the container are not known",
        "`envFrom` names a ConfigMap or Secret that is not among the objects given. What it holds "
        "was taken as not there.",
        "Give the ConfigMap in the same stream.",
        source=f"{_KUBELET}::makeEnvironmentVariables",
        bad=f"containers:\n- {{name: c, {_IMAGE}, args: [m], "
        "envFrom: [{configMapRef: {name: settings}}]}\n",
        good=f"containers:\n- {{name: c, {_IMAGE}, args: [m]}}\n",
    ),
    parser_rule(
        "kubernetes-one-word-command",
        Severity.ERROR,
        "The whole command is one word",
        "Kubernetes starts the program that the first item of `command` names; there is no shell "
        "that would split it. A program whose name is the whole command does not exist.",
        "Give each word its own item, or run it by a shell: `[sh, -c, …]`.",
        source="Kubernetes, api/core/v1 Container.command",
        bad="containers:\n- {name: c, command: [vllm serve org/model]}\n",
        good="containers:\n- {name: c, command: [vllm, serve, org/model]}\n",
    ),
    parser_rule(
        "kubernetes-quoted-json",
        Severity.ERROR,
        "JSON has quotes around it that no shell takes away",
        "Items of `args` reach vLLM as they are. Quotes that a shell would take away stay part of "
        "the value, which is then no JSON object.",
        "Leave the outer quotes out.",
        source="vllm/engine/arg_utils.py::optional_type",
        bad=f"containers:\n- name: c\n  {_IMAGE}\n  args:\n  - m\n  - --speculative-config\n"
        """  - "'{\\"method\\": \\"ngram\\", \\"num_speculative_tokens\\": 2}'"\n""",
        good=f"containers:\n- name: c\n  {_IMAGE}\n  args:\n  - m\n  - --speculative-config\n"
        """  - '{"method": "ngram", "num_speculative_tokens": 2}'\n""",
    ),
    parser_rule(
        "kubernetes-annotation-unread",
        Severity.WARNING,
        "An annotation of ours says nothing",
        "There is no annotation of that name, or its value cannot be read. What it was to say did "
        "not count.",
        "Correct it: `vllm-admission/vllm-version`, `vllm-admission/ignore`, "
        "`vllm-admission/gpu-memory-in-use` and `vllm-admission/model-config` are known.",
        source="app/kubernetes/annotations.py",
        bad=_ANNOTATED % 'gpu-memory-in-use: "much"',
        good=_ANNOTATED % 'gpu-memory-in-use: "0.2"',
    ),
    parser_rule(
        "kubernetes-script-unread",
        Severity.WARNING,
        "A script that starts a server cannot be read",
        "The script of the container starts vLLM in a way that is not followed: several servers, a "
        "loop, quotes that do not end. The verdict on it stays open; other servers of the stream "
        "are judged.",
        "Write the command of the server as `command` and `args`.",
        source="POSIX.1-2024, XCU sh",
        bad='containers:\n- name: c\n  command: [sh, -c, "vllm serve a & vllm serve b \'x"]\n',
        good="containers:\n- name: c\n  command: [sh, -c, vllm serve a]\n",
    ),
    parser_rule(
        "launch-own-options",
        Severity.INFO,
        "A program around vLLM has options of its own",
        "`dynamo.vllm` and KServe's Hugging Face server take vLLM's arguments beside others. What "
        "vLLM does not know may be theirs, and was passed over.",
        "Nothing, unless the option is misspelt.",
        source="dynamo, components/src/dynamo/vllm; KServe, python/huggingfaceserver",
        bad="python3 -m dynamo.vllm --model m --migration-limit 3",
        good="python3 -m dynamo.vllm --model m",
    ),
    parser_rule(
        "launch-removed-option",
        Severity.ERROR,
        "An option that Dynamo has removed",
        "`--connector` is gone since Dynamo 1.0.0, and `--is-prefill-worker`, `--is-decode-worker` "
        "and the multimodal roles since 1.4.0. Dynamo 1.5.0 is the first with a vLLM that is "
        "judged here, so that they are gone too where the image's tag tells no Dynamo version.",
        "Write `--disaggregation-mode prefill` (or `decode`) or `--kv-transfer-config`, or keep "
        "the older image and name its version in the tag.",
        source="dynamo, components/src/dynamo/vllm/args.py",
        bad=f"{_RUNTIME}:1.4.0\n  args: [-m, dynamo.vllm, --model, m, --is-decode-worker]\n",
        good=f"{_RUNTIME}:1.3.0\n  args: [-m, dynamo.vllm, --model, m, --is-decode-worker]\n",
    ),
    parser_rule(
        "launch-removed-variable",
        Severity.WARNING,
        "A variable that Dynamo does not read any more",
        "It stood for an option that is gone. Newer Dynamo refuses some of them and passes over "
        "the others: a prefill worker then serves whole requests.",
        "Give the option's successor.",
        source="dynamo, components/src/dynamo/vllm/backend_args.py",
        bad="DYN_VLLM_IS_DECODE_WORKER=true python3 -m dynamo.vllm --model m",
        good="DYN_VLLM_DISAGGREGATION_MODE=decode python3 -m dynamo.vllm --model m",
    ),
    parser_rule(
        "launch-prefill-without-transfer",
        Severity.ERROR,
        "A prefill worker of Dynamo has no way to hand its cache on",
        "Below 1.0.0 Dynamo took NIXL of its own accord. Since then a prefill worker without "
        "`--kv-transfer-config` is refused at its start.",
        "Give `--kv-transfer-config` to prefill and decode workers alike.",
        source="dynamo, components/src/dynamo/vllm/args.py::update_dynamo_config_with_engine",
        bad="python3 -m dynamo.vllm --model m --disaggregation-mode prefill",
        good="python3 -m dynamo.vllm --model m --disaggregation-mode prefill "
        """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'""",
    ),
)
