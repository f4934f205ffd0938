#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tiles on CUDA devices: every case right, and what goes wrong said in one sentence. The devices are those of a
# stand-in for CUDA's driver, or, with GPU=1, real ones.
set -u
. "$(dirname "$0")/reshard_bench_checks.sh"

if [ "${GPU:-0}" = 1 ] && ! "$RESHARD_BENCH" -n 2 --case t1 --memory cuda -i 1 >"$out" 2>&1; then
    cat "$out"
    grep -q 'no CUDA' "$out" && exit 77
    exit 1
fi

run 16 -n 8 --suite alpa-tests --memory cuda --nic-gbps 10 --validate -w 0 -i 1
run 2 -n 8 --case t5 --case t16 --memory cuda --strategy send_recv -w 0 -i 2 --verify
grep -q ', memory cuda$' "$out" || fail "the memory is not in the header"
grep -q '^# Checksums            : all equal$' "$out" || fail "--verify is not in the summary"
run 1 -n 16 --case nm3 --scale 1/256 --memory cuda -w 0 -i 1

# Uneven parts, empty parts, meshes that overlap, elements of 1 and 16 bytes, little memory for packing.
set -- --src-mesh 2x2 --dst-mesh 4 --src-spec S01R --dst-spec RS0 --shape 7x9 --memory cuda -w 0 -i 1
run 1 -n 8 "$@" --partition chunk
run 1 -n 8 "$@" --partition balanced --shape 2x3 --dtype int8 --nic-gbps 10
run 1 -n 6 "$@" --partition chunk --src-ranks 0-3 --dst-ranks 5,3,2,4 --dtype complex128
run 1 -n 4 "$@" --partition chunk --src-ranks 0-3 --dst-ranks 3-0 --hosts 2 --strategy send_recv
run 1 -n 8 "$@" --partition chunk --shape 1023x1025 --memory-limit 1MiB

# JSON says where the tiles were.
timeout 60 "$RESHARD_BENCH" -n 2 --case t1 --memory cuda --json >"$out" || fail "--json"
json "$out" "d['config']['memory'] == 'cuda'"

# refused TEXT ARGUMENTS...: status not 0, and one sentence with the text.
refused() {
    text=$1
    shift
    if timeout 60 "$RESHARD_BENCH" "$@" >"$out" 2>&1; then
        fail "status 0: $*"
    elif ! grep -q -- "$text" "$out"; then
        fail "no '$text': $*"
    fi
}
refused '--memory cuda needs real ranks' -n 4 --case t1 --memory cuda --transport sim
if [ "${GPU:-0}" != 1 ]; then
    set -- -n 4 --case t1 --nic-gbps 10 --memory cuda -w 0 -i 1
    CUDA_DOUBLE_FAIL=cuInit=34 refused 'memory cuda: no CUDA: driver: cuInit' "$@"
    CUDA_DOUBLE_DEVICES=0 refused 'no CUDA: the driver knows no device' "$@"
    CUDA_DOUBLE_FAIL=cuMemAlloc_v2=2 refused 'cuMemAlloc of [0-9]* bytes: CUDA_ERROR_OUT_OF_MEMORY' "$@"
    CUDA_DOUBLE_FAIL=cuMemHostAlloc=2 refused 'rank [0-9]*: CUDA device [01]: cuMemHostAlloc' "$@"
    CUDA_DOUBLE_FAIL=step=700@3 refused 'CUDA_ERROR_ILLEGAL_ADDRESS' "$@"
    CUDA_DOUBLE_FAIL=cuModuleLoadData=209 run 1 "$@"
    # Neighbours that cannot open each other's tiles send messages, and a debug line says so.
    for call in cuIpcGetMemHandle=801 cuIpcOpenMemHandle_v2=201; do
        CUDA_DOUBLE_FAIL=$call XM_LOG=debug XM_LOG_FILE="$directory/log" run 1 "$@"
        grep -q "${call%%[_=]*}.*by messages" "$directory/log" || fail "$call: no debug line"
    done
    rm "$directory/log"
    XM_LOG=debug XM_LOG_FILE="$directory/log" run 1 "$@"
    grep -q 'pinned buffers, packed by' "$directory/log" || fail "the path is not told"
    ! grep -q 'by messages' "$directory/log" || fail "tiles were not opened"
    CUDA_DOUBLE_FAIL=cuLaunchKernel=701@3 run 1 "$@"
    (
        unset LD_LIBRARY_PATH
        timeout 60 "$RESHARD_BENCH" "$@" >"$out" 2>&1
        [ $? -eq 2 ] && grep -q 'rank 0: --memory cuda: no CUDA: libcuda.so.1' "$out"
    ) || [ -e /dev/nvidiactl ] || fail "without a driver"
    # The kernels' benchmark checks what it copies.
    timeout 60 "$PACK_BENCH" --bytes 256KiB --repeat 2 >"$out" 2>&1 || fail "pack-bench"
    [ "$(grep -vc '^#' "$out")" -ge 10 ] || fail "pack-bench: too few rows"
fi
finish
