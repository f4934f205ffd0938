#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Bad input ends with status 2 and exactly one sentence that names the numbers, before anything moves.
set -u
: "${RESHARD_BENCH:?}"
failures=0
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT

# refuse TEXT ARGUMENTS...: status 2, nothing on standard output, one line with TEXT on standard error.
refuse() {
    text=$1
    shift
    timeout 60 "$RESHARD_BENCH" "$@" >"$directory/out" 2>"$directory/err"
    status=$?
    lines=$(wc -l <"$directory/err")
    if [ "$status" -ne 2 ] || [ "$lines" -ne 1 ] || [ -s "$directory/out" ] ||
        ! grep -qF -- "$text" "$directory/err" || ! grep -q '^reshard-bench: ' "$directory/err"; then
        echo "FAILED: reshard-bench $*"
        echo "  expected status 2 and one line with: $text"
        echo "  got status $status and $lines lines:"
        sed 's/^/  /' "$directory/err"
        failures=$((failures + 1))
    fi
}

# own TEXT ARGUMENTS...: the same for a small case of its own; later options override.
own() {
    text=$1
    shift
    refuse "$text" -n 8 --src-mesh 2x2 --dst-mesh 2x2 --src-spec S0R --dst-spec RS1 --shape 8x8 "$@"
}

# disagree TEXT RANK0_OPTIONS RANK1_OPTIONS [RANK1_RATES]: two ranks that a launcher started, each with its options; the job
# says it once.
disagree() {
    text=$1
    port=$("$(dirname "$0")/free_port.py")
    common="--src-mesh 1 --dst-mesh 1 --src-spec RR --dst-spec RR"
    rates=--nic-gbps=10
    # shellcheck disable=SC2086
    RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        timeout 60 "$RESHARD_BENCH" $common ${4-$rates} $3 >"$directory/out1" 2>"$directory/err1" &
    # shellcheck disable=SC2086
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        timeout 60 "$RESHARD_BENCH" $common $rates $2 >"$directory/out" 2>"$directory/err"
    status=$?
    wait $!
    other=$?
    lines=$(cat "$directory/err" "$directory/err1" | wc -l)
    if [ "$status" -ne 2 ] || [ "$other" -ne 2 ] || [ "$lines" -ne 1 ] ||
        ! grep -qF -- "$text" "$directory/err"; then
        echo "FAILED: rank 0 with $2, rank 1 with $3"
        echo "  expected status 2 on both and one line with: $text"
        echo "  got status $status and $other, and:"
        sed 's/^/  /' "$directory/err" "$directory/err1"
        failures=$((failures + 1))
    fi
}

# What DESIGN's list of bad input names.
own "'S0S0' uses mesh axis 0 twice (dimensions 0 and 1)" --src-spec S0S0
own "dimension 0 has 7 elements, which 2 parts do not divide" --shape 7x8
own "the source mesh names rank 9, but the job has ranks 0 … 7" --src-ranks 0-2,9 --dst-ranks 4-7
own "the destination mesh names rank 8, but the job has ranks 0 … 7" --dst-ranks 5-8
own "the mesh names rank 2 twice" --src-ranks 0,1,2,2
own "more than 2^62 elements (up to dimension 1)" --shape 4294967296x4294967296
own "more than 2^63 bytes (up to dimension 1)" --shape 2147483648x2147483648 --dtype float64
disagree "rank 1 has dtype float32 where rank 0 has int32" "--shape 4x4 --dtype int32" "--shape 4x4 --dtype float32"
disagree "rank 1 has shape 4x6 where rank 0 has 4x4: dimension 1 has 6 elements, not 4" "--shape 4x4" "--shape 4x6"

# What else cannot be done.
own "need 8 ranks, but the job has 7" -n 7
own "--src-ranks names 3 ranks, but --src-mesh 2x2 has 4" --src-ranks 0-2
own "is for 1 dimensions, but the tensor" --src-spec S0
own "split over mesh axis 3, but mesh 2x2 has 2 axes" --src-spec S3R
own "--src-spec: " --src-spec SXR
own "--shape: " --shape 8xx8
own "unknown dtype 'flaot32'; did you mean float32?" --dtype flaot32
own "--partition: unknown partition 'chnk'; did you mean chunk?" --partition chnk
own "--partition: the explicit partition needs the offsets of its cuts" --partition explicit
own "--strategy: 'brodcast' is unknown; did you mean 'broadcast'?" --strategy brodcast
own "--scheduler: 'balanse' is unknown; did you mean 'balance'?" --scheduler balanse
own "--strategy names auto twice" --strategy auto,broadcast,auto
own "--scheduler: '' is not one of naive|balance" --scheduler naive,
own "--protocol paper is 3 runs before 10 timed ones; leave --warmup out" --protocol paper -w 3
own "--plot is about one plan, but 7 are asked for" --dry-run --strategy all --plot "$directory/x.svg"
own "--transport: 'sims' is unknown; did you mean 'sim'?" --transport sims
own "unknown option --straegy; did you mean --strategy?" --straegy broadcast
own "unexpected argument 'nm1'" nm1
own "--iterations: 0 is outside 1 … 1000000" -i 0
own "--nic-gbps: -1 is outside" --nic-gbps -1
own "--nic-gbps: " --nic-gbps 10,,25
own "--nic-gbps: " --nic-gbps 10,x
own "--racks is given but --uplink-gbps is not" --racks 2
own "--uplink-gbps is given but --racks is not" --uplink-gbps 40
own "--racks 5, but there are 4 hosts" --transport sim --racks 5 --uplink-gbps 40
own "--verify compares what was moved" --dry-run --verify
own "--pattern is given but --density is not" --pattern rows
own "--density needs real ranks" --density 1 --dry-run
own "--density needs --warmup 1 or more" --density 1 -w 0
own "--density has no transfers to draw" --density 1 --trace "$directory/t.json"
own "--memory-limit: " --memory-limit 1kG
own "--system-config is about models, but case own is not one" --system-config x.json
own "8 ranks do not fill 3 hosts evenly" --hosts 3
own "makes 6 ranks, but -n says 8" --hosts 3 --ranks-per-host 2
own "--validate and --no-validate contradict each other" --validate --no-validate
own "--profile and --nic-gbps both" --profile x.json --nic-gbps 10
own "/nonexistent.json: No such file" --profile /nonexistent.json
own "--suite and --src-mesh name different things" --suite alpa
own "--trace shows measured transfers" --dry-run --trace "$directory/t.json"
own "--json-file: cannot write '/proc/none/x.json': No such file" -J /proc/none/x.json
own "--json-file: cannot write '$directory': Is a directory" --dry-run -J "$directory"
own "--trace: cannot write '$directory/no/t.json': No such file" --trace "$directory/no/t.json"
own "--plot: cannot write '/proc/none/x.svg': No such file" --transport sim --plot /proc/none/x.svg
own "--dump-plan: cannot write '/dev/null/x': Not a directory" --dry-run --dump-plan /dev/null/x
refuse "--src-mesh is given but --dst-mesh is not" --src-mesh 2x2
refuse "nothing to move" -n 4
refuse "--model-config is given but --system-config is not" --model-config x.json
refuse "/nonexistent.json: No such file" --model-config x.json --system-config /nonexistent.json --dry-run
refuse "--shard-table is about models, but case t1 is not one" --case t1 --shard-table x.json --dry-run
refuse "--dtype is about cases of one tensor" --case dense-7b --dtype int8 --dry-run
refuse "--partition is about cases of one tensor" --suite model --partition chunk --dry-run
refuse "--suite and --model-config name different things" --suite model --model-config x.json --system-config y.json
refuse "makes 32 ranks, but the job has 8" -n 8 --case dense-7b --scale 1/64
refuse "scale" --case dense-7b --scale 1/3 --dry-run
refuse "--boundary is given but --plan is not" --boundary 1
refuse "cannot read /nonexistent.json" --plan /nonexistent.json --dry-run
refuse "unknown case 'nm55'; did you mean nm5?" --case nm55 --dry-run
refuse "--suite: 'alpah' is unknown; did you mean 'alpa'?" --suite alpah
refuse "--memory-limit: 0 bytes hold nothing" --case t1 --memory-limit 0 --transport sim
refuse "--scale: '64' is not 1 or of the form 1/64" --suite alpa --scale 64
refuse "case t1 has 4 elements in dimension 0, which 3 does not divide" --case t1 --scale 1/3 --dry-run
refuse "-n 16 starts as many ranks as are needed" --case nm1
refuse "16 ranks on hosts of 4 are enough" --case nm1 -n 6
refuse "--plot is about one case, but 16 are selected" --suite alpa --dry-run --plot "$directory/x.svg"
disagree "--iterations must be equal on all ranks: rank 0 has 3, rank 1 has 4" \
    "--shape 4x4 -i 3" "--shape 4x4 -i 4"
disagree "number of cases must be equal on all ranks: rank 0 has 2, rank 1 has 1" \
    "--shape 4x4 --strategy broadcast,auto" "--shape 4x4 --strategy broadcast"
disagree "--seed must be equal on all ranks: rank 0 has 1, rank 1 has 2" "--shape 4x4" "--shape 4x4 --seed 2"
disagree "--profile or --nic-gbps must be equal on all ranks: rank 0 has 1, rank 1 has 0" \
    "--shape 4x4" "--shape 4x4" ""
disagree "puts rank 1 on host 1, but the launcher has it on host 0" \
    "--shape 4x4 --ranks-per-host 1" "--shape 4x4 --ranks-per-host 1"
disagree "--json-file: cannot write '/proc/none/x.json'" "--shape 4x4 -J /proc/none/x.json" "--shape 4x4"
disagree "rank 1: unknown option --bogus" "--shape 4x4" "--shape 4x4 --bogus"
disagree "rank 1: unknown dtype 'int33'" "--shape 4x4" "--shape 4x4 --dtype int33"

# The case that cannot be laid out is named.
refuse "case nm4: destination layout: " --suite alpa-nm --scale 1/256 --dry-run
refuse "this is a cluster profile, not a parallel plan" --plan "$SOURCE_DIR/tests/fixtures/profiles/lab-2x4.json" --dry-run
refuse "this is a cluster profile, not a file of --model-config" \
    --model-config "$SOURCE_DIR/tests/fixtures/profiles/lab-2x4.json" --system-config "$SOURCE_DIR/tests/fixtures/profiles/lab-2x4.json" --dry-run

# A name that is no setting may be another program's: it is warned of once, and the work is done.
XM_TIMOUT=1 "$RESHARD_BENCH" --list >"$directory/out" 2>"$directory/err" && grep -q nm1 "$directory/out" &&
    grep -q "warning: unknown setting XM_TIMOUT; did you mean XM_TIMEOUT?" "$directory/err" &&
    [ "$(wc -l <"$directory/err")" -eq 1 ] || { echo "FAILED: --list under XM_TIMOUT"; failures=$((failures + 1)); }

[ "$failures" -eq 0 ] || exit 1
echo "all bad input refused"
