#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Exported shardings under the real XLA: the predicted collectives, the unsharded results.
set -u
python=$XLA_VENV/bin/python
if ! "$python" -c 'import jax' 2>/dev/null; then
    echo "there is no JAX in $XLA_VENV (scripts/xla-venv makes it): skipped"
    exit 77
fi
exec "$python" "$SOURCE_DIR/bench/xla_agreement.py" "$BUILD_DIR" "$@"
