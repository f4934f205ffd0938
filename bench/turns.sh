# SPDX-License-Identifier: Apache-2.0
# Of scripts that measure two programs in turns, round by round, so that whatever disturbs the machine disturbs both
# alike. Sourced; a script sets $work, a folder with a file of figures a side, and $failed=0.

# The median of the figures on standard input; 0 of none.
median() {
    sort -g | awk '{ v[NR] = $1 } END { if (NR) print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2; else print 0 }'
}

# head_of_rows OURS THEIRS
head_of_rows() {
    printf '# %-32s %-6s %12s %12s %8s %10s %s\n' "" "" "$1" "$2" "ratio" "goal" "verdict"
}

# row TITLE UNIT OURS THEIRS GOAL: medians of both files, the median of the rounds' ratios, and whether that is as GOAL
# (">= 0.95", "<= 1.3" or "none") says. $failed becomes 1 where it is not, or where a side measured nothing.
row() {
    if [ ! -s "$work/$3" ] || [ "$(wc -l <"$work/$3")" -ne "$(wc -l <"$work/$4")" ]; then
        printf '  %-32s %-6s not measured\n' "$1" "$2"
        failed=1
        return
    fi
    ratio=$(paste "$work/$3" "$work/$4" | awk '$2 > 0 { print $1 / $2 }' | median)
    verdict=$(echo "$ratio $5" | awk '$2 == "none" { print ""; next }
        { good = $2 == ">=" ? $1 >= $3 : $1 > 0 && $1 <= $3; print good ? "met" : "MISSED" }')
    [ "$verdict" != MISSED ] || failed=1
    printf '  %-32s %-6s %12.3f %12.3f %8.3f %10s %s\n' "$1" "$2" "$(median <"$work/$3")" "$(median <"$work/$4")" \
        "$ratio" "$5" "$verdict"
}

# The first two cores that this process may use, as $first_core and $second_core; one twice where there is only one.
find_cores() {
    cores=$(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{ for (c = $1; c <= ($2 == "" ? $1 : $2); ++c) print c }')
    first_core=$(echo "$cores" | sed -n 1p)
    second_core=$(echo "$cores" | sed -n 2p)
    second_core=${second_core:-$first_core}
}

# needs SCRIPT PROGRAM…
needs() {
    script=$1
    shift
    for program in "$@"; do
        command -v "$program" >/dev/null || {
            echo "$script: there is no $program" >&2
            exit 2
        }
    done
}
