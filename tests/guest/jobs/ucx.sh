#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ucx.sh BUILD_DIR: what the UCX transport must do, with UCX on RDMA queue pairs (rc_verbs) instead of TCP.
set -eu
export CK_RUN_CASE=rdma
# The cases move some 100 MiB over the devices.
exec counters 100000000 "$1/tests/comm/test_transport_ucx"
