docker run -d --rm --name llm --runtime nvidia --gpus '"device=0,1"' \
  --shm-size=8g --ipc host -p 8000:8000 \
  -v ~/.cache/huggingface:/models/cache \
  -e HF_TOKEN="$HF_TOKEN" -e VLLM_USE_V2_MODEL_RUNNER=0 \
  vllm/vllm-openai:v0.32.0-cu130 \
  org/model \
  --tensor-parallel-size 2 \
  --return-sampling-mask --logprobs-mode processed_logprobs
