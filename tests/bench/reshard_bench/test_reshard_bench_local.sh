#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Real ranks of this machine: every case right, every output well-formed.
set -u
. "$(dirname "$0")/reshard_bench_checks.sh"

# The suites on real processes. Where rates are not the subject they are given: probing takes longer than the runs.
rates=--nic-gbps=8
run 16 "$rates" -n 16 --suite alpa --scale 1/64 --strategy broadcast --validate -w 0 -i 1
run 9 "$rates" -n 16 --suite alpa-nm --scale 1/128 --strategy send_recv --scheduler naive -w 0 -i 1
run 18 "$rates" -n 16 --suite alpa-nm --scale 1/128 --strategy local_allgather,global_allgather --scheduler naive -w 0 -i 1
run 16 "$rates" -n 8 --suite alpa-tests -w 1 -i 3
run 16 "$rates" -n 8 --suite alpa-tests --strategy send_recv -i 1
run 16 "$rates" -n 8 --suite alpa-tests --strategy broadcast --scheduler naive -i 1

# Uneven parts, empty parts, meshes that overlap, elements of 1 and 16 bytes, a scalar.
set -- --src-mesh 2x2 --dst-mesh 4 --src-spec S01R --dst-spec RS0 --shape 7x9
run 1 "$rates" -n 8 "$@" --partition chunk
run 1 "$rates" -n 8 "$@" --partition chunk --shape 2x3 --dtype int8
run 1 "$rates" -n 8 "$@" --partition balanced --shape 2x3 --dtype int8
run 1 "$rates" -n 6 "$@" --partition chunk --src-ranks 0-3 --dst-ranks 5,3,2,4 --dtype complex128
run 1 -n 4 "$@" --partition chunk --src-ranks 0-3 --dst-ranks 3-0 --hosts 2 --strategy send_recv
run 1 "$rates" -n 5 --src-mesh 1 --dst-mesh 4 --src-spec "" --dst-spec "" --shape scalar

# Hosts: without --hosts the rows of the meshes; the bound of one host is that of its devices' ports.
run 1 -n 8 --src-mesh 2x2 --dst-mesh 2x2 --src-spec S0R --dst-spec RS1 --shape 64x64
grep -q '^# ranks 8, hosts 4,' "$out" || fail "not 4 hosts"
run 1 -n 8 --src-mesh 2x2 --dst-mesh 2x2 --src-spec S0R --dst-spec RS1 --shape 64x64 --hosts 1 --wide
grep -q '^# ranks 8, hosts 1,' "$out" || fail "not 1 host"
grep -v '^#' "$out" | awk '$(NF - 2) != "0.000" { exit 1 }' || fail "NIC traffic on one host"

# Where the rates come from is said.
grep -q '^# rates: probed at start$' "$out" || fail "the probe is not named"
run 1 -n 16 --case nm3 --scale 1/128 --nic-gbps 8 -i 1
grep -q '^# network: NIC 1.000 GB/s' "$out" || fail "--nic-gbps 8 is not 1 GB/s"

# A limit on pack buffers is kept to, or refused with the least that is needed.
set -- "$rates" --src-mesh 2x2 --dst-mesh 2x2 --src-spec RS0 --dst-spec S0R --shape 1024x1024
run 1 -n 8 "$@" --memory-limit 1MiB -i 1 --verify
grep -q '^# Checksums            : all equal$' "$out" || fail "--verify is not in the summary"
grep -q 'memory limit 1048576 B' "$out" || fail "the memory limit is not in the header"
run 1 -n 8 "$@" --memory-limit 1MiB -i 1 --verify --transport sim
if timeout 60 "$RESHARD_BENCH" -n 8 "$@" --memory-limit 1kB >"$out" 2>&1 ||
    ! grep -q 'a memory limit of 1000 bytes is too small' "$out"; then
    fail "--memory-limit 1kB"
fi

# Updates: what has changed moves, whatever it is; fewer bytes where less has.
set -- -n 6 --src-mesh 2 --dst-mesh 4 --src-ranks 0-1 --dst-ranks 2-5 --src-spec S0R --dst-spec RS0 --shape 1500x1401
run 2 "$@" --hosts 2 --partition chunk --density 4 --strategy broadcast,send_recv -i 2
sed -n 's/.*update below sends \([0-9.]*\) % .*/\1/p' "$out" |
    awk 'NR > 1 && ($1 / first - 1 > 0.1 || first / $1 - 1 > 0.1) { bad = 1 } { first = $1 } END { exit bad || NR != 2 }' ||
    fail "updates by two strategies send different changes"
# What is predicted is counted by other numbers than those that are sent.
for density in 0.2 10; do
    run 1 "$@" --hosts 2 --dtype bf16 --shape 3000x1401 --partition chunk --density $density -i 2
    sed -n 's/.*update below sends \([0-9.]*\) % .* predicted: \([0-9.]*\) %.*/\1 \2/p' "$out" |
        awk '{ exit !($1 / $2 < 1.05 && $2 / $1 < 1.05) }' || fail "of $density % other bytes are sent than predicted"
done
for density in 0.05 5 100; do
    run 1 "$@" --hosts 3 --partition chunk --dtype bf16 --density $density
done
sent=""
for pattern in uniform rows blocks; do
    run 1 "$@" --hosts 2 --partition chunk --density 4 --pattern $pattern -i 2
    sent="$sent $(sed -n 's/.*update below sends \([0-9.]*\) % .*/\1/p' "$out" | head -1)"
done
echo "$sent" | awk '{ exit !(NF == 3 && $1 < 8 && $2 < $1) }' || fail "updates of 4 % sent$sent %"

# Files.
run 1 -n 16 --case nm5 --scale 1/128 -i 2 -J "$directory/j.json" --trace "$directory/t.json" \
    --plot "$directory/p.svg" --dump-plan "$directory/d.json"
json "$directory/j.json" "sorted(d) == ['args', 'config', 'env', 'ranks', 'results', 'version']"
json "$directory/j.json" "len(d['ranks']) == 16 and len({r['pid'] for r in d['ranks']}) == 16"
json "$directory/j.json" "len({'sim_error', 'not_comparable'} & set(d['results'][0])) == 1"
json "$directory/j.json" "sorted(set(d['results'][0]) - {'sim_error', 'not_comparable', 'waited_s', 'busbw_GBps'}) == sorted('case src dst shape dtype strategy scheduler \
transport bytes net_bytes plan_s makespan_s bound_s time_s algbw_GBps netbw_GBps bound_fraction wrong \
digest chosen_strategy chosen_scheduler gap tensors cpu_s setup_s'.split())"
json "$directory/j.json" "sorted(d['results'][0]['time_s']) == ['all', 'max', 'mean', 'median', 'min', 'variance'] and \
len(d['results'][0]['time_s']['all']) == 2"
json "$directory/j.json" "d['results'][0]['wrong'] == 0 and d['results'][0]['shape'] == [8, 1024, 512]"
json "$directory/j.json" "abs(d['results'][0]['algbw_GBps'] * d['results'][0]['time_s']['median'] * 1e9 \
/ d['results'][0]['bytes'] - 1) < 1e-6"
json "$directory/t.json" "all(e['dur'] >= 0 for e in d['traceEvents'] if e['ph'] == 'X')"
json "$directory/t.json" "len([e for e in d['traceEvents'] if e['ph'] == 'X' and e['tid'] < 3]) == \
2 * sum(len(p['routes'][t['route']]['ranks']) for p in [json.load(open('$directory/d.json'))] for t in p['transfers'])"
json "$directory/t.json" "all(sum(c['args']['bytes'] for c in chunks) == e['args']['bytes'] and len(chunks) == e['args']['chunks'] for e in d['traceEvents'] \
if e['ph'] == 'X' and e['tid'] < 2 for chunks in [[c for c in d['traceEvents'] if c['ph'] == 'X' and (c['pid'], c['tid'], c['args']['transfer'], c['args']['hop']) \
== (e['pid'], e['tid'] + 5, e['args']['transfer'], e['args']['hop'])]])"
json "$directory/d.json" "d['digest'] == json.load(open('$directory/j.json'))['results'][0]['digest']"
python3 -c "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])" "$directory/p.svg" ||
    fail "the SVG is not well-formed"

# --json puts the document, and nothing else, on standard output.
timeout 60 "$RESHARD_BENCH" "$rates" -n 4 --case t1 --case t14 --json >"$out" || fail "--json"
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
timeout 60 "$RESHARD_BENCH" "$rates" -n 4 --case t1 --no-validate --json >"$out" || fail "--no-validate"
json "$out" "'wrong' not in d['results'][0]"

# The report holds the settings, but not the secret.
XM_JOB_SECRET=0123456789-secret XM_WINDOW=3 timeout 60 "$RESHARD_BENCH" "$rates" -n 4 --case t1 --json >"$out" || fail "with a secret"
json "$out" "d['env'].get('XM_WINDOW') == '3' and 'XM_JOB_SECRET' not in d['env']"
grep -q 0123456789-secret "$out" && fail "the secret is in the report"

finish
