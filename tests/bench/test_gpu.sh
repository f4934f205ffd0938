#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench/gpu.sh and its bundle. Without a device: every part is skipped with the reason, at once. In a root that has the C
# library and a shell alone, the bundle finds all its libraries. STAND_IN=1: every part's host side, on the stand-in for
# CUDA's driver.
set -u
: "${SOURCE_DIR:?}" "${BUILD_DIR:?}"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# The script looks for the programs beside itself.
mkdir -p "$work/tree/build" "$work/tree/bench"
ln -s "$BUILD_DIR" "$work/tree/build/release"
ln -s "$SOURCE_DIR/tests" "$SOURCE_DIR/plugins" "$work/tree/"
cp "$SOURCE_DIR/bench/gpu.sh" "$work/tree/bench/"
if [ "${STAND_IN:-0}" = 1 ]; then
    "$work/tree/bench/gpu.sh" --stand-in || fail "a part failed"
    grep -h . "$work"/tree/out/gpu-stand-in/*.log | tail -n 40
    python3 -c '
import json, sys
parts = {p["part"]: p["result"] for p in json.load(open(sys.argv[1]))["parts"]}
passed = [part for part in parts if parts[part] == "passed"]
assert passed == "memory executor reshard ipc staged too-much kernels nccl-axes nccl torch state".split(), parts
' "$work/tree/out/gpu-stand-in/gpu.json" || fail "not all parts ran"
    [ $failures -eq 0 ]
    exit
fi

if [ ! -e /dev/nvidiactl ]; then
    timeout 60 "$work/tree/bench/gpu.sh" >"$work/said" || fail "status not 0 without a device"
    [ "$(grep -c 'skipped .* no device: ' "$work/said")" -eq 11 ] || fail "not every part is skipped: $(cat "$work/said")"
    python3 -m json.tool "$work/tree/out/gpu/gpu.json" >"$work/json" || fail "gpu.json"
fi
"$work/tree/bench/gpu.sh" --no-such-option 2>"$work/said" && fail "an unknown option is taken"
grep -q '^Usage: bench/gpu.sh' "$work/said" || fail "no usage"

if [ "$(id -u)" -ne 0 ] || ! command -v busybox >/dev/null; then
    echo "the bundle is not tried: that takes root and busybox"
else
    root=$work/root
    UCX_WHEEL=no BUILD_DIR=$BUILD_DIR "$SOURCE_DIR/scripts/gpu-bundle" "$work/bundle" || fail "gpu-bundle"
    mkdir -p "$root/bin" "$root/dev" "$root/proc" "$root/sys"
    tar -C "$root" -xJf "$work/bundle.tar.xz" || fail "unpacking"
    cp "$(command -v busybox)" "$root/bin/busybox"
    for name in sh dirname grep cut head timeout; do ln -s busybox "$root/bin/$name"; done
    ldd "$BUILD_DIR/bench/reshard-bench" | grep -o '/[^ ]*/\(libc\|libm\|ld-linux[^/]*\)\.so[^ ]*' | while read -r file; do
        mkdir -p "$root$(dirname "$file")"
        cp -L "$file" "$root$file"
    done
    inside() { unshare --mount sh -c 'for of in proc sys dev; do mount --rbind "/$of" "$0/$of"; done; exec chroot "$0" "$@"' "$root" "$@"; }
    inside /bin/sh /bundle/gpu.sh --self-check >"$work/said" 2>&1 || fail "self-check: $(cat "$work/said")"
    rm "$root"/bundle/lib/libhwloc.so.15
    inside /bin/sh /bundle/gpu.sh --self-check >"$work/said" 2>&1 && fail "self-check misses nothing"
    grep -q 'libhwloc.so.15' "$work/said" || fail "a missing library is not named: $(cat "$work/said")"
fi
[ $failures -eq 0 ]
