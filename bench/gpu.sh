#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All that one CUDA device can show of crossmesh, in at most 8 minutes and without a network: the tests of the label gpu,
# reshards of device memory by every path, torch and NCCL with real devices, and the rates of the kernels, of launches,
# of the host's link and between two processes. A part that fails or takes too long does not stop the others.
#
# Usage: bench/gpu.sh [OPTION]   -> out/gpu/gpu.json, gpu.md (the table of docs/cuda.md), PART.log
#        --self-check            only whether all programs find their libraries, and two ranks start
#        --stand-in              with the stand-in for CUDA's driver, in small: are the parts themselves right?
# Run it in the source tree (with build/release built), or in the folder that scripts/gpu-bundle made.
# Exit: 0, also where there is no device; 1 when a part failed.
set -u
cd "$(dirname "$0")" || exit 1
[ -d build ] || cd .. || exit 1
root=$PWD
built=$root/build/release
out=${GPU_OUT:-$root/out/gpu}
stand_in=
[ -d "$root/lib" ] && bundled=$root/lib || bundled=
export LD_LIBRARY_PATH="$bundled${bundled:+:}${LD_LIBRARY_PATH:-}"
[ -z "$bundled" ] || export UCX_MODULE_DIR="$bundled/ucx"

programs="tests/comm/test_memory tests/resharding/test_reshard_execute_device tests/comm/test_collective_nccl
    bench/reshard-bench bench/pack-bench libnccl-net-crossmesh.so libcrossmesh.so"

# self_check: every program and library with its libraries, as the dynamic loader finds them.
self_check() {
    bad=0
    for name in $programs; do
        file=$built/$name
        missing=$(LD_TRACE_LOADED_OBJECTS=1 "$(loader)" "$file" 2>&1 | grep -E 'not found|cannot' || true)
        if [ ! -e "$file" ] || [ -n "$missing" ]; then
            echo "$name: ${missing:-is not there}"
            bad=1
        fi
    done
    # Over TCP: what UCX takes and refuses there differs between its releases.
    if [ $bad -eq 0 ] && ! said=$(timeout 60 "$built/bench/reshard-bench" -n 2 --hosts 2 --src-mesh 1 --dst-mesh 1 \
        --src-ranks 0 --dst-ranks 1 --src-spec R --dst-spec R --shape 1024 -w 0 -i 1 2>&1); then
        echo "two ranks do not start: $(echo "$said" | head -n 1)"
        bad=1
    fi
    [ $bad -eq 1 ] || echo "all programs and libraries are there, and two ranks start"
    return $bad
}

loader() {
    for file in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do
        [ ! -e $file ] || echo $file
    done
}

# quoted TEXT: as a JSON string.
quoted() {
    printf '"%s"' "$(printf '%s' "$1" | tr -d '\r' | tr '\t\n' '  ' | sed 's/[\\"]/\\&/g')"
}

# note NAME RESULT SECONDS REMARK: a line on the terminal, a row of the table, and an object of the document.
note() {
    printf '%-10s %-9s %4s s  %s\n' "$1" "$2" "$3" "$4"
    printf '| %s | %s | %s | %s |\n' "$1" "$2" "$3" "$4" >>"$out/parts.md"
    printf '%s    {"part": "%s", "result": "%s", "seconds": %s, "remark": %s}' "$comma" "$1" "$2" "$3" \
        "$(quoted "$4")" >>"$out/parts.json"
    comma=",
"
}

# part NAME SECONDS COMMAND...: one part. Status 77 skips it; its last line is the remark.
part() {
    name=$1 limit=$2
    shift 2
    if [ -n "$absent" ]; then
        note "$name" skipped 0 "$absent"
        return
    fi
    # The stand-in sleeps and wakes for every step, on whatever else the machine does.
    [ -z "$stand_in" ] || limit=$((4 * limit))
    begin=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    status=$?
    remark=$(tail -n 1 "$out/$name.log" | cut -c 1-110)
    case $status in
    0) result=passed ;;
    77) result=skipped ;;
    124 | 137) result=FAILED remark="not done within $limit s" ;;
    *) result=FAILED ;;
    esac
    [ $result != FAILED ] || failed=1
    note "$name" $result $(($(date +%s) - begin)) "$remark"
}

# suite CASE PROGRAM: a test program; the number of its tests is the remark.
suite() {
    CK_RUN_CASE=$1 "$built/$2"
    status=$?
    [ $status -ne 77 ] || echo "this machine has too few devices for it, or lacks a library"
    return $status
}

# reshard: of two ranks' rows to two ranks' columns, all of one device, with every byte checked.
reshard() {
    "$built/bench/reshard-bench" -n 4 --src-mesh 2 --dst-mesh 2 --src-spec S0R --dst-spec RS0 --memory cuda \
        --shape "$shape" --dtype float16 --validate -w 2 -i 10 --json >"$out/reshard.txt" || return 1
    cat "$out/reshard.txt"
    sed -n 's/.*"algbw_GBps": *\([0-9.e+-]*\).*/\1 GB\/s, every byte right/p' "$out/reshard.txt" | grep .
}

# too_much: more memory than any device has is one sentence, and nothing else.
too_much() {
    ! "$built/bench/reshard-bench" -n 2 --src-mesh 1 --dst-mesh 1 --src-spec RR --dst-spec RR --memory cuda \
        --shape 1048576x524288 --dtype float16 -w 0 -i 1 >"$out/too-much.txt" 2>&1 || {
        echo "a tensor of a terabyte was moved"
        return 1
    }
    cat "$out/too-much.txt"
    grep -o 'cuMemAlloc of .*\|no memory.*' "$out/too-much.txt" | tail -n 1 | grep .
}

# python ARGUMENTS...: with the package. torch must be there and see a device, or, with the stand-in, be there.
python() {
    PYTHONPATH=$root/plugins/python/src:$root/tests/plugins/python CROSSMESH_LIBRARY=$built/libcrossmesh.so \
        TEST_TORCH_DEVICE=$tensors CROSSMESH_TEST_ROUNDS=60 PYTHONDONTWRITEBYTECODE=1 GLOO_SOCKET_IFNAME=lo \
        "${PYTHON:-python3}" "$@"
}
torch() {
    "${PYTHON:-python3}" -c "import torch, sys; sys.exit('$tensors' == 'cuda' and not torch.cuda.is_available())" || {
        echo "${PYTHON:-python3} has no torch that sees a device"
        return 77
    }
    python "$@"
}

# nccl: the plug-in sends by NCCL's table; then NCCL's own loader opens it and the tuner. (Two ranks of one device are none
# of NCCL's business.)
nccl() {
    export NCCL_NET_PLUGIN="$built/libnccl-net-crossmesh.so"
    python -m crossmesh.nccl check || return 1
    [ $tensors = cuda ] || return 0
    NCCL_TUNER_PLUGIN=$NCCL_NET_PLUGIN NCCL_DEBUG=INFO torch -c '
import os, torch, torch.distributed as dist
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
ones = torch.ones(1 << 20, device="cuda")
dist.all_reduce(ones)
assert bool((ones == 1).all())
dist.destroy_process_group()' >"$out/nccl.txt" 2>&1
    status=$?
    cat "$out/nccl.txt"
    [ $status -eq 0 ] || return $status
    grep -i 'net/plugin.*crossmesh\|using network crossmesh' "$out/nccl.txt" | tail -n 1 | grep .
}

# kernels: the table of pack-bench, and its worst rows from 1 KiB and at 64 B in per cent of a device's copy.
kernels() {
    "$built/bench/pack-bench" --bytes "$bytes" --repeat "$repeat" | tee "$out/kernels.txt"
    awk '/^(half|rows of [14] KiB)/ { a = $(NF - 1) < $NF ? $(NF - 1) : $NF; if (long == "" || a < long) long = a }
        /^rows of 64 B/ { short = $(NF - 1) < $NF ? $(NF - 1) : $NF }
        /^# host link/ { sub("# ", ""); link = $0 }
        END { if (link == "") exit 1; print "rows of 1 KiB and more " long " %, of 64 B " short " % of a copy; " link }' \
        "$out/kernels.txt"
}

# What `timeout` runs is a process: this script again, with the name of the function.
if [ "${1:-}" = --part ]; then
    shift
    "$@"
    exit
fi
case ${1:-} in
--self-check)
    self_check
    exit
    ;;
--stand-in)
    stand_in=1
    export LD_LIBRARY_PATH="$built/tests/nccl_double:$built/tests/cuda_double:$LD_LIBRARY_PATH" CUDA_DOUBLE_DELAY_US=1
    out=$root/out/gpu-stand-in
    ;;
'') ;;
*)
    sed -n '3,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
rm -rf "$out"
mkdir -p "$out" || exit 1
failed=0 comma=
shape=16384x16384 bytes=256MiB repeat=20 tensors=cuda axes=real
[ -z "$stand_in" ] || { shape=256x256 bytes=64KiB repeat=2 tensors=cpu axes=nccl; }
export GPU_OUT="$out" shape bytes repeat tensors GPU=1 RESHARD_BENCH="$built/bench/reshard-bench"

absent=
device=none driver=none
self_check >"$out/self-check.txt" || {
    absent="something is missing: $(head -n 1 "$out/self-check.txt")"
    failed=1
}
if [ -z "$absent" ] && ! said=$(timeout 60 "$built/bench/pack-bench" --bytes 4KiB --repeat 1 2>&1); then
    absent="no device: $(echo "$said" | sed -n 's/.*no CUDA: //p' | head -n 1)"
fi
if [ -z "$absent" ]; then
    device=$(echo "$said" | sed -n 's/^# CUDA device [0-9]*, \(.*\); boxes.*/\1/p')
    driver=$(sed -n 's/.*Kernel Module[^0-9]*\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version 2>/dev/null)
fi
self=$root/gpu.sh
[ -e "$self" ] || self=$root/bench/gpu.sh

part memory 90 sh "$self" --part suite cuda tests/comm/test_memory
part executor 180 sh "$self" --part suite cuda tests/resharding/test_reshard_execute_device
part reshard 90 sh tests/bench/reshard_bench/test_reshard_bench_cuda.sh
part ipc 40 sh "$self" --part reshard
part staged 40 env XM_CUDA=staging sh "$self" --part reshard
if [ -n "$stand_in" ]; then
    part too-much 20 env CUDA_DOUBLE_FAIL=cuMemAlloc_v2=2 sh "$self" --part too_much
else
    part too-much 40 sh "$self" --part too_much
fi
part kernels 60 sh "$self" --part kernels
part nccl-axes 60 sh "$self" --part suite $axes tests/comm/test_collective_nccl
part nccl 60 sh "$self" --part nccl
part torch 90 sh "$self" --part torch tests/plugins/python/test_torch_redistribute.py Redistribute.test_random_pairs
part state 60 sh "$self" --part torch tests/plugins/python/test_torch_state_dict.py StateDicts.test_training_to_serving

when=$(date -u +%Y-%m-%d)
{
    printf '{\n  "date": "%s",\n  "device": %s,\n  "driver": "%s",\n  "parts": [\n' "$when" "$(quoted "$device")" "$driver"
    cat "$out/parts.json"
    printf '\n  ]\n}\n'
} >"$out/gpu.json"
{
    printf '%s, driver %s, %s: `bench/gpu.sh`.\n\n| part | result | s | |\n|---|---|--:|---|\n' "$device" "$driver" "$when"
    cat "$out/parts.md"
    if [ -e "$out/kernels.txt" ]; then
        printf '\n```\n'
        cat "$out/kernels.txt"
        printf '```\n'
    fi
} >"$out/gpu.md"
rm -f "$out/parts.json" "$out/parts.md"
exit $failed
