#!/bin/sh
# The long run of the fuzz targets: ninja fuzz-long. Every target gets SLICE seconds, in turns, until all together
# have EXECUTIONS executions; then a table. What the targets learn stays in the build tree, and the next run goes on
# from there. Fails when a target found something: the input is named.
#
# long.sh BUILD_DIRECTORY CORPUS_DIRECTORY TARGET…
#   EXECUTIONS (10000000), SLICE (60 s), and at most ROUNDS (20) turns.
set -eu
build=$1 corpora=$2
shift 2
total=${EXECUTIONS:-${DEFAULT:-10000000}} slice=${SLICE:-60} rounds=${ROUNDS:-20}
work=${WORK:-$build/long}
mkdir -p "$work"
# What was found is run again with full reports; until then short stacks and little quarantine are thrice as fast.
export ASAN_OPTIONS="${ASAN_OPTIONS:-malloc_context_size=1:quarantine_size_mb=8}"
export LSAN_OPTIONS="suppressions=$corpora/../fuzz.supp:print_suppressions=0"
for target in "$@"; do
    : >"$work/$target.executions"
    : >"$work/$target.edges"
    mkdir -p "$work/$target.corpus" "$work/$target.found"
done

# The executions and the edges of one turn, from what libFuzzer prints.
note() {
    awk -v executions="$work/$1.executions" -v edges="$work/$1.edges" '
        $1 ~ /^#[0-9]+$/ { count = substr($1, 2); for (i = 2; i < NF; ++i) if ($i == "cov:") seen = $(i + 1) }
        $1 == "stat::number_of_executed_units:" { count = $2 }
        END { print count + 0 >>executions; print seen + 0 >edges }' "$work/$1.log"
}

sum() {
    cat "$@" | awk '{ all += $1 } END { printf "%.0f", all }'
}

round=0
while [ "$round" -lt "$rounds" ]; do
    for target in "$@"; do
        [ -z "$(ls "$work/$target.found")" ] || continue
        words=$corpora/../$target.dict
        [ -f "$words" ] && words=-dict=$words || words=
        # shellcheck disable=SC2086 # an option or none
        "$build/fuzz_$target" -max_total_time="$slice" -timeout=60 -report_slow_units=60 -rss_limit_mb=2048 $words \
            -print_final_stats=1 -artifact_prefix="$work/$target.found/" "$work/$target.corpus" \
            "$corpora/$target" >"$work/$target.log" 2>&1 || true
        note "$target"
        echo "fuzz-long: $target, $(sum "$work"/*.executions) executions in all"
    done
    round=$((round + 1))
    [ "$(sum "$work"/*.executions)" -lt "$total" ] || break
done

printf '\n%-22s %14s %8s %8s %8s\n' target executions edges inputs found
bad=0
for target in "$@"; do
    found=$(find "$work/$target.found" -type f | wc -l)
    printf '%-22s %14s %8s %8s %8s\n' "$target" "$(sum "$work/$target.executions")" "$(cat "$work/$target.edges")" \
        "$(find "$work/$target.corpus" -type f | wc -l)" "$found"
    bad=$((bad + found))
done
printf '%-22s %14s\n' all "$(sum "$work"/*.executions)"
if [ "$bad" -gt 0 ]; then
    echo "fuzz-long: found:"
    find "$work" -path '*.found/*' -type f
    exit 1
fi
[ "$(sum "$work"/*.executions)" -ge "$total" ] || {
    echo "fuzz-long: fewer than $total executions in $rounds rounds"
    exit 1
}
