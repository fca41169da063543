vllm serve Qwen/Qwen3-0.6B --return-sampling-mask --logprobs-mode processed_logprobs \
  --enable-scale-out --max-logprobs 64 --generation-config vllm
