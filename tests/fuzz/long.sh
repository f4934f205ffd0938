#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The long run of the fuzz targets: ninja fuzz-long. Every target gets SLICE seconds, in turns, some at a time, until all
# have had TURNS turns; then, since some are a thousand times quicker than others, those that have made more executions
# than the mean, until all together have made EXECUTIONS; then a table and one line that sums it up. What the targets learn
# stays in the build tree, and the next run goes on from there; one that was interrupted (which prints the table, too) is
# continued with its counts. Fails when a target found something: the input is named.
#
# long.sh BUILD_DIRECTORY CORPUS_DIRECTORY TARGET…
#   EXECUTIONS (100000000), SLICE (30 s), TURNS (4), JOBS targets at a time (the processors), and at most ROUNDS (40) turns.
set -eu
build=$1 corpora=$2
shift 2
targets=$* # words without blanks
total=${EXECUTIONS:-${DEFAULT:-100000000}} slice=${SLICE:-30} turns=${TURNS:-4} rounds=${ROUNDS:-40} jobs=${JOBS:-$(nproc)}
work=${WORK:-$build/long}
mkdir -p "$work"
# What was found is run again with full reports; until then short stacks and little quarantine are thrice as fast.
export ASAN_OPTIONS="${ASAN_OPTIONS:-malloc_context_size=1:quarantine_size_mb=8}"
export LSAN_OPTIONS="suppressions=$corpora/../../fuzz.supp:print_suppressions=0"
if [ ! -e "$work/running" ]; then
    rm -f "$work"/*.executions "$work"/*.edges
    echo 0 >"$work/running" # seconds so far
fi
for target in $targets; do
    touch "$work/$target.executions" "$work/$target.edges"
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

# One turn of a target.
turn() {
    words=$corpora/../words/$1.dict
    [ -f "$words" ] && words=-dict=$words || words=
    # shellcheck disable=SC2086 # an option or none
    "$build/fuzz_$1" -max_total_time="$slice" -timeout=60 -report_slow_units=60 -rss_limit_mb=2048 $words \
        -print_final_stats=1 -artifact_prefix="$work/$1.found/" "$work/$1.corpus" "$corpora/$1" >"$work/$1.log" 2>&1 || true
    note "$1"
}

# The targets that have executed more than the mean.
quick() {
    for target in $targets; do
        echo "$target $(sum "$work/$target.executions")"
    done | awk '{ executions[$1] = $2; all += $2 } END { for (target in executions) if (executions[target] * NR >= all) print target }'
}

before=$(cat "$work/running")
begin=$(date +%s)
seconds() {
    echo $((before + $(date +%s) - begin))
}

# The table, the sum, and what was found; $bad becomes how much that is.
report() {
    printf '\n%-22s %14s %8s %8s %8s\n' target executions edges inputs found
    bad=0
    for target in $targets; do
        found=$(find "$work/$target.found" -type f | wc -l)
        printf '%-22s %14s %8s %8s %8s\n' "$target" "$(sum "$work/$target.executions")" "$(cat "$work/$target.edges")" \
            "$(find "$work/$target.corpus" -type f | wc -l)" "$found"
        bad=$((bad + found))
    done
    if [ "$bad" -gt 0 ]; then
        echo "fuzz-long: found:"
        find "$work" -path '*.found/*' -type f
    fi
    echo "fuzz-long: $(sum "$work"/*.executions) executions of $(echo "$targets" | wc -w) targets in $(seconds) s, $bad crashes, leaks and timeouts"
}

interrupted() {
    trap '' INT TERM
    wait # the targets have heard it as well
    seconds >"$work/running"
    report
    exit 130
}
trap interrupted INT TERM

round=0
while [ "$round" -lt "$rounds" ] &&
    { [ "$round" -lt "$turns" ] || [ "$(sum "$work"/*.executions)" -lt "$total" ]; }; do
    started=0 next=$targets
    [ "$round" -lt "$turns" ] || next=$(quick)
    for target in $next; do
        [ -z "$(ls "$work/$target.found")" ] || continue
        turn "$target" &
        started=$((started + 1))
        [ $((started % jobs)) -ne 0 ] || wait
    done
    wait
    round=$((round + 1))
    seconds >"$work/running"
    echo "fuzz-long: turn $round: $(sum "$work"/*.executions) executions in all after $(seconds) s"
    [ "$started" -gt 0 ] || break
done
rm "$work/running"
report
[ "$bad" -eq 0 ] || exit 1
[ "$(sum "$work"/*.executions)" -ge "$total" ] || {
    echo "fuzz-long: fewer than $total executions in $rounds turns"
    exit 1
}
