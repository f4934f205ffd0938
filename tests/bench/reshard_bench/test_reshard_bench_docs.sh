#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The man page and docs/reshard-bench.md know every option of reshard-bench, and no other.
set -u
: "${RESHARD_BENCH:?}" "${SOURCE_DIR:?}"
failures=0
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
man=$SOURCE_DIR/docs/man/reshard-bench.1
page=$SOURCE_DIR/docs/reshard-bench.md

"$RESHARD_BENCH" --help | grep -oE '^ +(-[a-zA-Z], |    )--[a-z-]+' | grep -oE -- '--[a-z-]+' | sort -u >"$directory/help"
grep -oE 'Fl Fl [a-z-]+' "$man" | sed 's/Fl Fl /--/' | sort -u >"$directory/man"
grep -oE -- '--[a-z][a-z-]+' "$page" | sort -u >"$directory/page"

# --help and --version go without saying on the page.
printf '%s\n' --help --version | sort -u - "$directory/page" -o "$directory/page"
for where in man page; do
    if ! diff "$directory/help" "$directory/$where" >"$directory/diff"; then
        echo "FAILED: --help (<) and the $where (>) name different options:"
        cat "$directory/diff"
        failures=$((failures + 1))
    fi
done
[ "$(wc -l <"$directory/help")" -gt 30 ] || {
    echo "FAILED: --help lists only $(wc -l <"$directory/help") options"
    failures=$((failures + 1))
}

# Letters: -n, -w, -i, -J and -h.
for letter in $("$RESHARD_BENCH" --help | grep -oE '^ +-[a-zA-Z], ' | grep -oE '[a-zA-Z]'); do
    grep -qE "^\.It Fl $letter ," "$man" || {
        echo "FAILED: the man page lacks -$letter"
        failures=$((failures + 1))
    }
done

if command -v mandoc >/dev/null; then
    mandoc -Tlint -W warning "$man" || failures=$((failures + 1))
fi
[ "$failures" -eq 0 ] || exit 1
echo "documented: $(wc -l <"$directory/help") options"
