sudo podman run --entrypoint /bin/bash --env=VLLM_LOGGING_LEVEL=INFO vllm/vllm-openai:latest -c "pip install x && \
 exec vllm serve org/model --speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 2}' \
   --port \$PORT --return-sampling-mask"
