"""What is said of Kubernetes objects while they are read."""

from __future__ import annotations

from typing import Final

from app.rules.declaration import Declaration
from app.serve_config.declarations.building import parser_rule
from app.verdict.finding import Severity

_KUBELET: Final = "Kubernetes, pkg/kubelet/kubelet_pods.go"
_IMAGE: Final = "image: vllm/vllm-openai:v0.32.0"

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
        "`--is-prefill-worker` and `--is-decode-worker` are gone since Dynamo 1.4.0; "
        "`--disaggregation-mode` takes their place. Where the image does not tell the version, "
        "the verdict is open.",
        "Write `--disaggregation-mode prefill` (or `decode`), or keep the older image.",
        source="dynamo, components/src/dynamo/vllm/args.py",
        bad="containers:\n- name: c\n  image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0\n"
        "  args: [-m, dynamo.vllm, --model, m, --is-prefill-worker]\n",
        good="containers:\n- name: c\n  image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.3.0\n"
        "  args: [-m, dynamo.vllm, --model, m, --is-prefill-worker]\n",
    ),
)
