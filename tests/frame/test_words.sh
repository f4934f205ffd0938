#!/bin/sh
# scripts/check-words finds nothing here, and finds a retired word in a comment, in an identifier and in the plural.
set -eu
check=$SOURCE_DIR/scripts/check-words
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "FAILED: $*"
    exit 1
}

"$check" || fail "retired words in these sources"

planted=$scratch/planted.c
printf '/* The parcels wait. */\nint rb_muster_count;\nint Outbox2;\nint emailed;\n' >"$planted"
if "$check" "$planted" >"$scratch/unsorted"; then
    fail "planted words are not found"
fi
sort "$scratch/unsorted" >"$scratch/found"
diff - "$scratch/found" <<END || fail "another list"
$planted:1: parcel: the term is packet
$planted:2: muster: the term is stage barrier
$planted:3: Outbox: the term is tx queue
END
echo "found what was planted, and nothing else"
