#!/bin/bash
# how we start it
set -euo pipefail
cd /srv/models && ulimit -n 65536
export HF_HOME="/data/hf"   # weights
export VLLM_USE_V2_MODEL_RUNNER=1
PORT=${PORT:-8000}
ARGS=(
  --served-model-name 'my model'
  --port "$PORT"  # from outside
)
cat > serve.yaml <<EOF
max-model-len: 8192
port: $PORT
EOF
CUDA_VISIBLE_DEVICES=0,1 exec numactl -N 0 vllm serve org/model \
  "${ARGS[@]}" \
  --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}' \
  --return-sampling-mask 2>&1 | tee server.log
