#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Exported shardings under the real XLA: the predicted collectives, the unsharded results.
set -u
: "${SOURCE_DIR:?}" "${BUILD_DIR:?}" "${PYTHON:?}"
if ! "$PYTHON" -c 'import jax' 2>/dev/null; then
    echo "skipped: $PYTHON has no jax (./test installs it into build/python)"
    exit 77
fi
exec "$PYTHON" "$SOURCE_DIR/bench/xla_agreement.py" "$BUILD_DIR" "$@"
