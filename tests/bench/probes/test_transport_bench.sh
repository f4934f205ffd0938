#!/bin/sh
# transport-bench over UCX: well-formed rows, right bytes, one sentence on bad input, and pages that know its options.
set -u
. "$(dirname "$0")/../reshard_bench/reshard_bench_checks.sh"
: "${TRANSPORT_BENCH:?}" "${SOURCE_DIR:?}"

# rows COUNT ARGUMENTS...: status 0 and so many rows of numbers without a wrong byte.
rows() {
    count=$1
    shift
    if ! timeout 120 "$TRANSPORT_BENCH" "$@" >"$out" 2>&1; then
        fail "status not 0: $*"
        cat "$out"
    elif ! awk -v count="$count" \
        '!/^#/ { ++rows; bad += !(NF == 6 && $1 > 0 && $3 > 0 && $4 >= 0 && $6 == 0) }
         END { exit !(rows == count && !bad) }' "$out"; then
        fail "not $count good rows: $*"
        cat "$out"
    fi
}

# refuse TEXT ARGUMENTS...: status 2 and one sentence with TEXT.
refuse() {
    text=$1
    shift
    timeout 60 "$TRANSPORT_BENCH" "$@" >"$out" 2>&1
    status=$?
    if [ "$status" -ne 2 ] || [ "$(wc -l <"$out")" -ne 1 ] || ! grep -qF -- "$text" "$out"; then
        fail "status $status, expected 2 and one line with '$text': $*"
        cat "$out"
    fi
}

rows 3 -i 5 -w 1
rows 1 --size 1 -i 3 -w 0 --window 1
rows 2 --size 5,70000 -i 9 --window 4 --one-buffer
rows 2 --size 777,100001 -i 7 --window 3 --hosts 2 --unregistered
refuse "'shm' is not one of ucx|verbs" --transport shm
refuse "1 byte to 1 TiB" --size 8,0
refuse "--size" --size 8,,9
refuse "given 3 times" --nics a --nics b --nics c
refuse "--window" --window 0

"$TRANSPORT_BENCH" --help | grep -oE '^ +(-[a-zA-Z], |    )--[a-z-]+' | grep -oE -- '--[a-z-]+' | sort -u >"$directory/help"
grep -oE 'Fl Fl [a-z-]+' "$SOURCE_DIR/docs/man/transport-bench.1" | sed 's/Fl Fl /--/' | sort -u >"$directory/man"
grep -oE -- '--[a-z][a-z-]+' "$SOURCE_DIR/docs/transport-bench.md" | sort -u >"$directory/page"
printf '%s\n' --help --version | sort -u - "$directory/page" -o "$directory/page"
for where in man page; do
    diff "$directory/help" "$directory/$where" || fail "--help (<) and the $where (>) name different options"
done
if command -v mandoc >/dev/null; then
    mandoc -Tlint -W warning "$SOURCE_DIR/docs/man/transport-bench.1" || fail "the man page"
fi
finish
