# SPDX-License-Identifier: Apache-2.0
# What the tests of reshard-bench's outputs share; they read it with ".".
# shellcheck shell=sh
: "${RESHARD_BENCH:?}"
failures=0
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
out="$directory/out"

fail() {
    echo "FAILED: $*"
    sed 's/^/  /' "$out"
    failures=$((failures + 1))
}

# run CASES ARGUMENTS...: status 0, nothing on standard error, so many rows, each with #wrong 0.
run() {
    cases=$1
    shift
    echo "reshard-bench $*"
    if ! timeout 240 "$RESHARD_BENCH" "$@" >"$out" 2>"$directory/err"; then
        cat "$directory/err" >>"$out"
        fail "status not 0: $*"
    elif [ -s "$directory/err" ]; then
        cat "$directory/err" >>"$out"
        fail "output on standard error: $*"
    elif [ "$(grep -vc '^#' "$out")" -ne "$cases" ]; then
        fail "not $cases rows: $*"
    elif grep -v '^#' "$out" | awk '$NF != 0 { bad = 1 } END { exit !bad }'; then
        fail "wrong bytes: $*"
    elif ! grep -q '^# Out of bounds values : 0 OK$' "$out"; then
        fail "no summary: $*"
    fi
}

# json FILE EXPRESSION: EXPRESSION about the document d holds.
json() {
    if ! python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
sys.exit(0 if ($2) else 1)" "$1"; then
        fail "$1: $2"
    fi
}

# finish: the end of a test.
finish() {
    [ "$failures" -eq 0 ] || exit 1
    echo "all right"
}
