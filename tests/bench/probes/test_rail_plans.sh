#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Plans between unequal hosts and NICs are near the lower bound, which knows nothing of plans: 200 random ones, with a
# makespan of 1.005 times the bound on average and 1.05 times at most.
set -u
: "${RAIL_PLANS:?}"

# Columns: name number hosts rails scheduler transfers plan makespan bound ratio.
"$RAIL_PLANS" --random 200 | awk '
    $1 != "random" { next }
    NF != 10 { print "FAILED: " NF " columns: " $0; bad = 1; next }
    { ++plans; sum += $8 / $9 }
    $8 / $9 > 1.05 || $8 < $9 { print "FAILED: " $0; bad = 1 }
    END {
        if (plans != 200 || sum / plans > 1.005) { print "FAILED: mean " sum / plans " of " plans " plans"; bad = 1 }
        exit bad
    }'
