#!/bin/sh
# Real ranks of this machine, and simulated ones: every case right, every output well-formed.
set -u
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

# The suites on real processes.
run 16 -n 16 --suite alpa --scale 1/64 --strategy broadcast --validate -w 0 -i 1
run 9 -n 16 --suite alpa-nm --scale 1/128 --strategy send_recv --scheduler naive -w 0 -i 1
run 16 -n 8 --suite alpa-tests -w 1 -i 3
run 16 -n 8 --suite alpa-tests --strategy send_recv -i 1
run 16 -n 8 --suite alpa-tests --strategy broadcast --scheduler naive -i 1

# Uneven parts, empty parts, meshes that overlap, elements of 1 and 16 bytes, a scalar.
set -- --src-mesh 2x2 --dst-mesh 4 --src-spec S01R --dst-spec RS0 --shape 7x9
run 1 -n 8 "$@" --partition chunk
run 1 -n 8 "$@" --partition chunk --shape 2x3 --dtype int8
run 1 -n 8 "$@" --partition balanced --shape 2x3 --dtype int8
run 1 -n 6 "$@" --partition chunk --src-ranks 0-3 --dst-ranks 5,3,2,4 --dtype complex128
run 1 -n 4 "$@" --partition chunk --src-ranks 0-3 --dst-ranks 3-0 --hosts 2 --strategy send_recv
run 1 -n 5 --src-mesh 1 --dst-mesh 4 --src-spec "" --dst-spec "" --shape scalar

# Hosts: without --hosts the rows of the meshes; the bound of one host is that of its devices' ports.
run 1 -n 8 --src-mesh 2x2 --dst-mesh 2x2 --src-spec S0R --dst-spec RS1 --shape 64x64
grep -q '^# ranks 8, hosts 4,' "$out" || fail "not 4 hosts"
run 1 -n 8 --src-mesh 2x2 --dst-mesh 2x2 --src-spec S0R --dst-spec RS1 --shape 64x64 --hosts 1
grep -q '^# ranks 8, hosts 1,' "$out" || fail "not 1 host"
grep -v '^#' "$out" | awk '$(NF - 2) != "0.000" { exit 1 }' || fail "NIC traffic on one host"

# Where the rates come from is said.
grep -q '^# rates: probed at start$' "$out" || fail "the probe is not named"
run 1 -n 16 --case nm3 --scale 1/128 --nic-gbps 8 -i 1
grep -q '^# network: NIC 1.000 GB/s' "$out" || fail "--nic-gbps 8 is not 1 GB/s"

# A limit on pack buffers is kept to, or refused with the least that is needed.
set -- --src-mesh 2x2 --dst-mesh 2x2 --src-spec RS0 --dst-spec S0R --shape 1024x1024
run 1 -n 8 "$@" --memory-limit 1MiB -i 1 --verify
grep -q '^# Checksums            : all equal$' "$out" || fail "--verify is not in the summary"
grep -q 'memory limit 1048576 B' "$out" || fail "the memory limit is not in the header"
run 1 -n 8 "$@" --memory-limit 1MiB -i 1 --verify --transport sim
if timeout 60 "$RESHARD_BENCH" -n 8 "$@" --memory-limit 1kB >"$out" 2>&1 ||
    ! grep -q 'a memory limit of 1000 bytes is too small' "$out"; then
    fail "--memory-limit 1kB"
fi

# Hosts with unequal NICs, and racks.
timeout 60 "$RESHARD_BENCH" --case nm1 --dry-run --nic-gbps 10,25 --racks 2 --uplink-gbps 8 --json >"$out" ||
    fail "--racks"
json "$out" "d['config']['network']['nic_bandwidth_Bps'] == [1.25e9, 3.125e9]"
json "$out" "d['config']['network']['racks'] == 2 and d['config']['network']['uplink_bandwidth_Bps'] == 1e9"
json "$out" "abs(d['results'][0]['bound_s'] / 2.147483648 - 1) < 1e-6"

# Files.
run 1 -n 16 --case nm5 --scale 1/128 -i 2 -J "$directory/j.json" --trace "$directory/t.json" \
    --plot "$directory/p.svg" --dump-plan "$directory/d.json"
json "$directory/j.json" "sorted(d) == ['args', 'config', 'env', 'ranks', 'results', 'version']"
json "$directory/j.json" "len(d['ranks']) == 16 and len({r['pid'] for r in d['ranks']}) == 16"
json "$directory/j.json" "sorted(d['results'][0]) == sorted('case src dst shape dtype strategy scheduler \
transport bytes net_bytes plan_s makespan_s bound_s time_s algbw_GBps netbw_GBps bound_fraction wrong \
digest chosen_scheduler gap tensors'.split())"
json "$directory/j.json" "sorted(d['results'][0]['time_s']) == ['all', 'max', 'median', 'min'] and \
len(d['results'][0]['time_s']['all']) == 2"
json "$directory/j.json" "d['results'][0]['wrong'] == 0 and d['results'][0]['shape'] == [8, 1024, 512]"
json "$directory/j.json" "abs(d['results'][0]['algbw_GBps'] * d['results'][0]['time_s']['median'] * 1e9 \
/ d['results'][0]['bytes'] - 1) < 1e-6"
json "$directory/t.json" "all(e['dur'] >= 0 for e in d['traceEvents'] if e['ph'] == 'X')"
json "$directory/t.json" "len([e for e in d['traceEvents'] if e['ph'] == 'X']) == \
2 * sum(len(p['routes'][t['route']]['ranks']) for p in [json.load(open('$directory/d.json'))] for t in p['transfers'])"
json "$directory/d.json" "d['digest'] == json.load(open('$directory/j.json'))['results'][0]['digest']"
python3 -c "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])" "$directory/p.svg" ||
    fail "the SVG is not well-formed"

# --json puts the document, and nothing else, on standard output.
timeout 60 "$RESHARD_BENCH" -n 4 --case t1 --case t14 --json >"$out" || fail "--json"
json "$out" "[r['case'] for r in d['results']] == ['t1', 't14']"
json "$out" "[r['strategy'] for r in d['results']] == ['send_recv', 'broadcast']"
json "$out" "all(r['wrong'] == 0 and r['net_bytes'] == 0 for r in d['results'])"

# What was not measured is absent.
# An argument that is not UTF-8.
latin1=$(printf '%s/\351.json' "$directory")
timeout 60 "$RESHARD_BENCH" --case nm1 --dry-run --json --dump-plan "$latin1" >"$out" || fail "--json, not UTF-8"
json "$out" "d['args'][-1].endswith('/?.json') and len(d['results']) == 1"
timeout 60 "$RESHARD_BENCH" --suite alpa --dry-run --json >"$out" || fail "--dry-run --json"
json "$out" "len(d['results']) == 16"
json "$out" "not any(k in r for r in d['results'] for k in ('time_s', 'wrong', 'algbw_GBps'))"
timeout 60 "$RESHARD_BENCH" -n 4 --case t1 --no-validate --json >"$out" || fail "--no-validate"
json "$out" "'wrong' not in d['results'][0]"

# A model: built in, and from files; on real processes and simulated ranks, with packed parameters.
run 1 -n 32 --case dense-7b --scale 1/64 -w 0 -i 1 --verify --scheduler greedy
run 4 --suite model --scale 1/64 --transport sim -w 0 -i 1 --strategy auto --verify
cat >"$directory/model.json" <<'EOF'
{"model.embed_tokens.weight": {"shape": [96, 64], "dtype": "BF16"},
 "model.layers.0.self_attn.q_proj.weight": {"shape": [64, 64]},
 "model.layers.0.self_attn.k_proj.weight": {"shape": [32, 64]},
 "model.layers.0.self_attn.v_proj.weight": {"shape": [32, 64]},
 "model.layers.0.special.weight": {"shape": [8, 64], "dtype": "F32"},
 "model.norm.weight": {"shape": [64], "dtype": "F32"}}
EOF
cat >"$directory/system.json" <<'EOF'
{"train": {"num_gpus": 4, "tp_size": 2}, "generation": {"num_gpus": 4, "tp_size": 4}}
EOF
echo '{"rules": [{"name": "*.special.weight", "tp": 1}]}' >"$directory/table.json"
set -- --model-config "$directory/model.json" --system-config "$directory/system.json"
if timeout 60 "$RESHARD_BENCH" "$@" --dry-run >"$out" 2>&1 || ! grep -q special "$out"; then
    fail "a parameter that no entry names"
fi
run 1 -n 8 "$@" --shard-table "$directory/table.json" --ranks-per-host 4 -i 2
timeout 60 "$RESHARD_BENCH" "$@" --shard-table "$directory/table.json" --json --dry-run >"$out" || fail "--model-config"
json "$out" "d['results'][0]['case'] == 'model' and d['results'][0]['tensors'] == 6"
json "$out" "d['results'][0]['packed'] == 1 and d['results'][0]['elements'] == 96 * 64 + 128 * 64 + 8 * 64 + 64"
json "$out" "d['results'][0]['src'] == dict(first_rank=0, ranks=4, tp=2, pp=1, dp=2, fsdp=1, ep=1, cp=1)"
json "$out" "d['results'][0]['dst']['first_rank'] == 4 and d['results'][0]['dst']['tp'] == 4"

# Plans at full size, without a rank: auto says which scheduler it took.
timeout 120 "$RESHARD_BENCH" --suite model --dry-run --json >"$out" || fail "--suite model --dry-run"
json "$out" "[r['case'] for r in d['results']] == ['dense-7b', 'dense-32b', 'dense-70b', 'moe-256e']"
json "$out" "all(r['gap'] >= 0 and abs(r['makespan_s'] / r['bound_s'] - 1 - r['gap']) < 1e-6 for r in d['results'])"
timeout 60 "$RESHARD_BENCH" --case nm3 --dry-run --scheduler auto >"$out" || fail "--scheduler auto"
grep -qE ' auto:(dfs|greedy|openshop) ' "$out" || fail "auto does not say what it took"

# The simulated network: right bytes, virtual time that is the same in every run.
run 16 --suite alpa-tests --transport sim
run 9 --suite alpa-nm --scale 1/128 --transport sim -w 0 -i 2
timeout 120 "$RESHARD_BENCH" --case nm1 --scale 1/64 --transport sim --nic-gbps 8 --json -i 2 >"$out" ||
    fail "sim"
json "$out" "d['config']['virtual_time'] and d['results'][0]['transport'] == 'sim'"
json "$out" "len(set(d['results'][0]['time_s']['all'])) == 1"
json "$out" "0.8 < d['results'][0]['bound_fraction'] <= 1"

# The time of a simulated run is what the plan says, to the nanosecond.
for strategy in send_recv allgather broadcast auto; do
    for arguments in "--suite alpa-nm --scale 1/128" "--suite alpa-tests" "--case dense-7b --scale 1/64" \
        "--case nm4 --case nm6 --scale 1/64 --nic-gbps 10,25,5 --racks 2 --uplink-gbps 8"; do
        for scheduler in balance greedy openshop; do
            # shellcheck disable=SC2086
            timeout 120 "$RESHARD_BENCH" $arguments --transport sim --strategy $strategy --scheduler $scheduler \
                --no-validate -w 0 -i 2 --json >"$out" || fail "sim $strategy $scheduler $arguments"
            json "$out" "all(round(t * 1e9) == round(r['makespan_s'] * 1e9) for r in d['results'] for t in r['time_s']['all'])"
        done
    done
done

[ "$failures" -eq 0 ] || exit 1
echo "all right"
