"""A Mooncake Store on this machine that stays up, and the servers that use it.

What benchmarks/tensorrt_llm_kv_connector/deploy/run_ctx_gen_store.sh calls.
"""
