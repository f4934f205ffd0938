#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a test of the Python package: run.sh "SCRIPT [ARGUMENT…]" [MODULE…]; skipped where a module is not there.
set -u
: "${SOURCE_DIR:?}" "${PYTHON:?}"
here=$SOURCE_DIR/tests/plugins/python
script=$1
shift
if [ ! -x "$PYTHON" ]; then
    PYTHON=/usr/bin/python3
fi
for module in "$@"; do
    "$PYTHON" -c "import importlib.util as i, sys; sys.exit(i.find_spec('$module') is None)" || {
        echo "skipped: $PYTHON has no $module (./test installs build/python; ./test long build/peers-python and build/vllm-python)"
        exit 77
    }
done
PYTHONPATH=$SOURCE_DIR/plugins/python/src:$here
PYTHONDONTWRITEBYTECODE=1
GLOO_SOCKET_IFNAME=lo
OMP_NUM_THREADS=1
# Who is killed is missed at once; who only has to wait for a busy machine is not to be missed here.
XM_TIMEOUT=${XM_TIMEOUT:-120}
XM_HEARTBEAT=${XM_HEARTBEAT:-5}
export PYTHONPATH PYTHONDONTWRITEBYTECODE GLOO_SOCKET_IFNAME OMP_NUM_THREADS XM_TIMEOUT XM_HEARTBEAT
# shellcheck disable=SC2086 # a script and its arguments
exec "$PYTHON" "$here"/$script
