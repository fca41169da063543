"""Custom resources that describe a server of vLLM in their own words, one of each kind.

All say the same: eight sequences, eager mode, and a variable `KEPT`. Each has a comment `kept`,
which no edit may touch.
"""

from __future__ import annotations

from typing import Final

RAY: Final = """\
apiVersion: ray.io/v1
kind: RayService
metadata: {name: llm}
spec:
  serveConfigV2: |
    applications:
    - name: a
      import_path: ray.serve.llm:build_openai_app
      args:
        llm_configs:
        - model_loading_config: {model_id: qwen, model_source: Qwen/Qwen3-8B}
          runtime_env: {env_vars: {KEPT: "1"}}
          engine_kwargs:
            max_num_seqs: 8  # kept
            enforce_eager: true
  rayClusterConfig: {}
"""
RESOURCES: Final = {
    "kserve": """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: o}
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      args:
      - --model_name=demo
      - --max-num-seqs=8  # kept
      - --enforce-eager
      env: [{name: KEPT, value: "1"}]
""",
    "llm service": """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: o}
spec:
  template:
    containers:
    - name: main
      env:
      - {name: VLLM_ADDITIONAL_ARGS, value: "--max-num-seqs '8' --enforce-eager"}
      - {name: KEPT, value: "1"}  # kept
""",
    "llm service with arguments": """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: o}
spec:
  prefill:
    template:
      containers:
      - name: main
        command: [vllm, serve]
        args:
        - m
        - --max-num-seqs  # kept
        - "8"
        - --enforce-eager
        env: [{name: KEPT, value: "1"}]
""",
    "llm service with a script": """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: o}
spec:
  template:
    containers:
    - name: main
      command: [/bin/sh, -c]
      args:
      - |
        # kept
        exec vllm serve m --max-num-seqs 8 --enforce-eager
      env: [{name: KEPT, value: "1"}]
""",
    "ray": RAY,
    "kubeai": """\
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: o}
spec:
  engine: VLLM
  url: hf://org/m?pull=always
  args: [--max-num-seqs=8, --enforce-eager]  # kept
  env: {KEPT: "1"}
""",
    "stack": """\
servingEngineSpec:
  modelSpec:
  - name: big  # kept
    modelURL: org/m
    vllmConfig:
      maxNumSeqs: 8
      extraArgs: ["--enforce-eager"]
      enablePrefixCaching: true
    env:
    - name: KEPT
      value: "1"
""",
    "stack runtime": """\
apiVersion: production-stack.vllm.ai/v1alpha1
kind: VLLMRuntime
metadata: {name: o}
spec:
  model: {modelURL: org/m}
  vllmConfig:
    maxNumSeqs: 8  # kept
    extraArgs: [--enforce-eager]
    env: [{name: KEPT, value: "1"}]
""",
    "actuation": """\
apiVersion: fma.llm-d.ai/v1alpha1
kind: InferenceServerConfig
metadata: {name: o}
spec:
  modelServerConfig:
    port: 8005
    options: >-
      --model org/m
      --max-num-seqs 8
      --enforce-eager
    env_vars: {KEPT: "1"}  # kept
""",
    "dynamo": """\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: o}
spec:
  services:
    Decode:
      extraPodSpec:
        mainContainer:
          args: [-m, dynamo.vllm, --model, m, --max-num-seqs, "8", --enforce-eager]  # kept
          env: [{name: KEPT, value: "1"}]
""",
    "aibrix": """\
apiVersion: orchestration.aibrix.ai/v1alpha1
kind: StormService
metadata: {name: o}
spec:
  template:
    spec:
      roles:
      - name: decode
        template:
          spec:
            containers:
            - name: vllm
              command: [vllm, serve, m]
              args: [--max-num-seqs, "8", --enforce-eager]  # kept
              env: [{name: KEPT, value: "1"}]
""",
    "leader and workers": """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: o}
spec:
  leaderWorkerTemplate:
    workerTemplate:
      spec:
        containers:
        - name: vllm
          command: [vllm, serve, m]
          args: [--max-num-seqs, "8", --enforce-eager]  # kept
          env: [{name: KEPT, value: "1"}]
""",
    "helm release": """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: o}
spec:
  values:
    controllers:
      vllm:
        containers:
          app:
            image: {repository: vllm/vllm-openai, tag: v0.32.0}
            args: [m, --max-num-seqs, "8", --enforce-eager]  # kept
            env: {KEPT: "1"}
""",
    "helm release with a script": """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: o}
spec:
  values:
    controllers:
      vllm:
        containers:
          app:
            command: [/bin/bash, -lc]
            args:
            - |
              # kept
              exec vllm serve m --max-num-seqs 8 --enforce-eager
            env: {KEPT: "1"}
""",
    "helm release with a list": """\
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: o}
spec:
  sources:
  - helm:
      valuesObject:
        controllers:
          vllm:
            containers:
              app:
                command: [vllm, serve, m]
                args: [--max-num-seqs, "8", --enforce-eager]
                env: [{name: KEPT, value: "1"}]  # kept
""",
    "helm release of the stack": """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: o}
spec:
  values:
    servingEngineSpec:
      modelSpec:
      - name: big  # kept
        modelURL: org/m
        vllmConfig:
          maxNumSeqs: 8
          extraArgs: ["--enforce-eager"]
        env: [{name: KEPT, value: "1"}]
""",
}
