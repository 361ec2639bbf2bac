#!/usr/bin/env bash
# A Mooncake Store on this machine, and CTX and GEN servers of TensorRT-LLM that use it.
#
#   run_ctx_gen_store.sh up [--metadata http]     master, metadata server and storage; they stay up
#   run_ctx_gen_store.sh status                   what runs
#   eval "$(run_ctx_gen_store.sh env)"            the environment of clients
#   run_ctx_gen_store.sh ctx MODEL [--dry-run]    trtllm-serve as prefill server
#   run_ctx_gen_store.sh gen MODEL [--dry-run]    trtllm-serve as decode server
#   run_ctx_gen_store.sh down                     stops what `up` started
#   run_ctx_gen_store.sh showcase [--out DIR]     gate, matrix, trace, figures and report
#
# All options: run_ctx_gen_store.sh COMMAND --help. PYTHON names the interpreter to use; otherwise
# it is .venv/bin/python of this checkout, or python3.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

python=${PYTHON:-}
if [ -z "$python" ]; then
  python=$here/../../../.venv/bin/python
  [ -x "$python" ] || python=python3
fi
if ! "$python" -c 'import mooncake_trtllm' 2>/dev/null; then
  echo "run_ctx_gen_store.sh: $python has no package mooncake_trtllm;" \
    "remedy: make setup, or pip install . and PYTHON=/path/to/python" >&2
  exit 2
fi
exec "$python" -m mooncake_trtllm.deploy --configs "$here/../configs" "$@"
