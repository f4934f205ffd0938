#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# steady.sh COMMAND…: runs it at the same addresses every time, where that is allowed. libFuzzer tries words that it saw
# compared, pointers among them, so with other addresses it executes other inputs.
if setarch -R true 2>/dev/null; then
    exec setarch -R "$@"
fi
exec "$@"
