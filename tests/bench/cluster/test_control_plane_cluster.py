#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who is alive, in an emulated cluster: no NIC, no reset, no loss and no disorder of packets ends a job while a path is left;
of a network that falls apart exactly the majority goes on; who dies is known at once, and who is only slow stays.

test_control_plane_cluster.py [ROW …]            each of the rows (or a few, where TEST_SHARE is set), once
test_control_plane_cluster.py --table [ROW …]    each as often as docs/failures.md promises it; --jobs N: N jobs each at most
test_control_plane_cluster.py --injections N     rows drawn at random until there were so many faults
Both print a table at the end. --seed S draws hosts, NICs, directions and moments."""
import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import cluster_lab as lab
from cluster_lab import expect

SURVIVOR = os.environ["SURVIVOR"]
RESHARD_BENCH = os.environ["RESHARD_BENCH"]
SPOIL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spoil_segments.bpf.c")
SLOW = max(1.0, float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1")))
PORT = "29617"
HOSTS, PER_HOST = 3, 2
LEFT_OUT = 3  # the status of a survivor that is in no group

# Classic BPF for tc in direct-action mode: 2 drops a packet, -1 goes on. Kernels without netem have this, and nothing
# else is needed to load it. At 23 an IPv4 packet has its protocol; 4294963256 is where a random number is read.
GO_ON = "6 0 0 4294967295"
EVERYTHING = "1,6 0 0 2"
UDP = f"4,48 0 0 23,21 0 1 17,6 0 0 2,{GO_ON}"


def one_in(percent, verdict):
    return f"4,32 0 0 4294963256,53 1 0 {int(percent * 42949672.95)},6 0 0 {verdict}"


def share(percent):
    return f"{one_in(percent, 2)},{GO_ON}"


def run_on(host, *words):
    result = lab.on(host, *words)
    expect(result.returncode == 0, words, result)


def drop(host, nic, direction, program):
    run_on(host, "sh", "-c", f"tc qdisc replace dev nic{nic} clsact && tc filter add dev nic{nic} {direction} bpf da bytecode '{program}'")


def disorder(host, nic, percent):
    """Some packets take a slow lane, and those behind overtake them."""
    run_on(host, "sh", "-c", f"tc class add dev nic{nic} parent 1: classid 1:2 htb rate 20mbit ceil 20mbit && "
           f"tc filter add dev nic{nic} parent 1: bpf bytecode '{one_in(percent, 65538)},6 0 0 0'")


def spoil(host, nic):
    run_on(host, "sh", "-c", f"mount -t bpf bpf /sys/fs/bpf && tc qdisc replace dev nic{nic} clsact && "
           f"tc filter add dev nic{nic} egress bpf da obj {lab.scratch}/spoil.o sec spoil")


class Job:
    """Ranks that pass messages around for some seconds, on hosts with so many NICs. Ready when all have met."""

    def __init__(self, what, seconds, nics, hosts=HOSTS, per_host=PER_HOST):
        self.what, self.seconds, self.ranks, self.per_host = what, seconds, hosts * per_host, per_host
        lab.up("--hosts", hosts, "--nic", "200mbit", "--nics-per-host", nics)
        self.processes, self.pids = [], []
        for rank in range(self.ranks):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(self.ranks), MASTER_ADDR="10.77.0.1", MASTER_PORT=PORT,
                               XM_NICS=",".join(f"nic{nic}=200000000" for nic in range(nics)), XM_TIMEOUT="30")
            self.processes.append(lab.start_on(rank // per_host, SURVIVOR, str(seconds), env=environment,
                                               stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        for process in self.processes:
            line = process.stdout.readline()
            expect(line.startswith("READY "), what, "not ready", line)
            self.pids.append(line.split()[-1] if line else "0")

    def signal(self, rank, name):
        run_on(rank // self.per_host, "sh", "-c", f"kill -{name} {self.pids[rank]}")

    def finish(self, more=30):
        """What each rank printed; none may hang."""
        end, outputs = time.monotonic() + (self.seconds + more) * SLOW, []
        for rank, process in enumerate(self.processes):
            try:
                outputs.append("".join(process.communicate(timeout=max(0.1, end - time.monotonic()))))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                outputs.append("HUNG " + "".join(process.communicate()))
                expect(False, self.what, "rank", rank, "hangs", outputs[-1])
        lab.down()
        return outputs

    def all_go_on(self):
        """All ranks end well, in the group that they began with."""
        for rank, output in enumerate(self.finish()):
            expect(self.processes[rank].returncode == 0 and "ENDED in generation 0:" in output, self.what, "rank", rank,
                   self.processes[rank].returncode, output)

    def only_others_go_on(self, out, told=True):
        """The ranks `out` are in no group any more, and, unless they are dead, say why; all others end well, and blame nobody
        else. When each of those knew first."""
        members = [rank for rank in range(self.ranks) if rank not in out]
        outputs, knew = self.finish(), []
        for rank in members:
            output = outputs[rank]
            expect(re.search(f"ENDED in generation [1-9]\\d*: {' '.join(map(str, members))}\n", output), self.what, "rank", rank,
                   self.processes[rank].returncode, output)
            expect(self.processes[rank].returncode == 0, self.what, "rank", rank, self.processes[rank].returncode, output)
            first = re.search(r"FAILED at ([\d.]+): (.*)", output)
            if first:
                knew.append(float(first.group(1)))
                blamed = re.match(r"rank (\d+) \(", first.group(2))
                expect(blamed is None or int(blamed.group(1)) in out, self.what, "rank", rank, "blames", first.group(2))
        for rank in out if told else []:
            output = outputs[rank]
            expect("OUT: " in output and re.search("the network has split|the others (go on without|take rank)", output),
                   self.what, "rank", rank, output)
            expect(self.processes[rank].returncode == LEFT_OUT, self.what, "rank", rank, self.processes[rank].returncode, output)
        return knew


def pause(draw):
    time.sleep(draw.uniform(0.5, 1.5))


def a_nic_is_lost(draw):
    """The control plane's own included; the kernel and UCX are told, or nobody is."""
    host, nic, how = draw.randrange(HOSTS), draw.randrange(2), draw.choice(["down", "ingress", "egress"])
    job = Job(f"nic{nic} of host {host}: {how}", 9, 2)
    pause(draw)
    if how == "down":
        run_on(host, "ip", "link", "set", f"nic{nic}", "down")
    else:
        drop(host, nic, how, EVERYTHING)
    job.all_go_on()
    return 1


def datagrams_are_blocked(draw):
    job = Job("no datagrams", 9, 1)
    pause(draw)
    for host in range(HOSTS):
        drop(host, 0, "egress", UDP)
    job.all_go_on()
    return HOSTS


def connections_are_reset(draw):
    job = Job("bootstrap's connections reset", 6, draw.choice([1, 2]))
    for _ in range(3):
        pause(draw)
        for host in range(HOSTS):
            lab.on(host, "ss", "-K", "dport", "=", PORT)
    job.all_go_on()
    return 3 * HOSTS


# When four gaps of 0.5 s begin: evenly, or so that what TCP sends again 0.2, 0.6, 1.4 and 3.0 s after the first loss falls into
# a gap each time, and passes only after 6.2 s: where a cluster's TCP has given up, unless it is set as the kernel sets it.
FLAPS = {"evenly": (0.0, 1.1, 2.2, 3.3), "in step with TCP": (0.0, 0.52, 1.15, 2.75)}


def links_flap(draw):
    host, how = draw.randrange(HOSTS), draw.choice(list(FLAPS))
    job = Job(f"link of host {host} flaps {how}", 9, 1)
    for each in range(HOSTS):
        run_on(each, "sh", "-c", "echo 15 >/proc/sys/net/ipv4/tcp_retries2")
    cable = lab.start_on(host, "ip", "-batch", "-", stdin=subprocess.PIPE)
    begin = time.monotonic()
    for gap in FLAPS[how]:
        for at, state in (gap, "down"), (gap + 0.5, "up"):
            time.sleep(max(0.0, begin + at - time.monotonic()))
            cable.stdin.write(f"link set nic0 {state}\n")
            cable.stdin.flush()
    cable.stdin.close()
    expect(cable.wait() == 0, job.what, "the link was not taken down")
    job.all_go_on()
    return 4


def packets_are_lost(draw):
    percent, nics = draw.choice([1, 5]), draw.choice([1, 2])
    job = Job(f"{percent} % lost of {nics} NICs", 9, nics)
    for host in range(HOSTS):
        for nic in range(nics):
            drop(host, nic, "egress", share(percent))
    job.all_go_on()
    return HOSTS * nics


def packets_are_lost_for_minutes(_):
    """18 ranks, both NICs of all hosts."""
    job = Job("5 % lost for ten minutes", 600, 2, per_host=6)
    for host in range(HOSTS):
        for nic in range(2):
            drop(host, nic, "egress", share(5))
    job.all_go_on()
    return 2 * HOSTS


def packets_overtake_each_other(draw):
    percent = draw.choice([2, 10])
    job = Job(f"{percent} % out of order", 7, 1)
    for host in range(HOSTS):
        disorder(host, 0, percent)
    job.all_go_on()
    return HOSTS


def segments_are_spoilt(_):
    """With XM_VERIFY=chunk a reshard has the right bytes all the same, and counts what was brought again. What ranks tell
    each other before that has no checksum of its own, so it is left alone."""
    lab.up("--hosts", 2, "--nic", "200mbit")
    processes = []
    for rank in range(4):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="4", MASTER_ADDR="10.77.0.1", MASTER_PORT=PORT, XM_TIMEOUT="30",
                           XM_VERIFY="chunk")
        processes.append(lab.start_on(rank // 2, RESHARD_BENCH, "--src-mesh", "2", "--dst-mesh", "2", "--src-ranks", "0,1",
                                      "--dst-ranks", "2,3", "--src-spec", "S0R", "--dst-spec", "RS0", "--shape", "1024x2048",
                                      "--dtype", "int32", "--nic-gbps", "0.2", "-w", "1", "-i", "24", env=environment,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    for line in processes[0].stdout:
        if "%bound" in line:
            break
    for host in range(2):
        spoil(host, 0)
    outputs = ["".join(process.communicate(timeout=60 * SLOW)) for process in processes]
    for rank, process in enumerate(processes):
        expect(process.returncode == 0, "spoilt segments: rank", rank, process.returncode, outputs[rank])
    expect("# Out of bounds values : 0 OK" in outputs[0], "spoilt segments", outputs[0])
    lab.down()
    again = re.search(r"Sent again +: (\d+)", outputs[0])
    expect(again is not None, "spoilt segments: nothing said of what was sent again", outputs[0])
    return int(again.group(1)) if again else 0


def a_host_is_cut_off(draw):
    """It hears nothing, is heard by nobody, or both."""
    host, how = draw.randrange(HOSTS), draw.choice(["hears nothing", "is heard by nobody", "has no link"])
    job = Job(f"host {host} {how}", 14, 1)
    pause(draw)
    if how == "has no link":
        run_on(host, "ip", "link", "set", "nic0", "down")
    else:
        drop(host, 0, "ingress" if how == "hears nothing" else "egress", EVERYTHING)
    job.only_others_go_on(range(host * PER_HOST, (host + 1) * PER_HOST))
    return 1


def a_rank_is_killed(draw):
    victim = draw.randrange(HOSTS * PER_HOST)
    job = Job(f"rank {victim} killed", 8, draw.choice([1, 2]))
    pause(draw)
    at = time.monotonic()
    job.signal(victim, "KILL")
    times["killed"] += [knew - at for knew in job.only_others_go_on([victim], told=False)]
    return 1


def a_rank_hangs(draw):
    """It wakes up when the others have gone on without it."""
    victim = draw.randrange(HOSTS * PER_HOST)
    job = Job(f"rank {victim} stopped", 12, 1)
    pause(draw)
    at = time.monotonic()
    job.signal(victim, "STOP")
    time.sleep(10)
    job.signal(victim, "CONT")
    job.processes[victim].send_signal(signal.SIGCONT)
    times["stopped"] += [knew - at for knew in job.only_others_go_on([victim])]
    return 1


def a_rank_is_held_up(draw):
    """For two seconds, as where others have the processors."""
    job = Job("ranks held up", 8, 1)
    for _ in range(2):
        victims = draw.sample(range(HOSTS * PER_HOST), 2)
        for victim in victims:
            job.signal(victim, "STOP")
        time.sleep(2)
        for victim in victims:
            job.signal(victim, "CONT")
            job.processes[victim].send_signal(signal.SIGCONT)
        time.sleep(1)
    job.all_go_on()
    return 4


times = {"killed": [], "stopped": []}
# How often each has to go well, and those that ./test strikes with: all take hours.
ROWS = {a_nic_is_lost: 40, datagrams_are_blocked: 20, connections_are_reset: 20, links_flap: 20, packets_are_lost: 20,
        packets_overtake_each_other: 20, segments_are_spoilt: 20, a_host_is_cut_off: 50, a_rank_is_killed: 40, a_rank_hangs: 10,
        a_rank_is_held_up: 20, packets_are_lost_for_minutes: 1}
FEW = [a_nic_is_lost, datagrams_are_blocked, connections_are_reset, a_host_is_cut_off]


class Tally:
    def __init__(self):
        self.jobs, self.failed, self.injections = 0, 0, 0

    def perform(self, row, draw):
        before = len(lab.failures)
        try:
            self.injections += row(draw)
        except Exception as problem:  # the next job is of interest all the same
            expect(False, row.__name__, repr(problem))
        lab.tool("down", "--name", lab.NAME)
        self.jobs += 1
        self.failed += len(lab.failures) > before


def known_after(kind, most):
    """By default settings: the seconds until each of the others knew."""
    seen = sorted(times[kind])
    if seen:
        print(f"{kind}: the others knew after {seen[len(seen) // 2]:.3f} s (median), {seen[-1]:.3f} s (most) of {len(seen)}")
        late = sum(seconds > most * SLOW for seconds in seen)
        expect(late == 0, kind, late, "knew later than after", most, "s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--jobs", type=int, default=1000000)
    parser.add_argument("--injections", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lab.skip_unless_possible()
    draw = random.Random(options.seed)
    made = shutil.which("clang") and lab.command("clang", "-O2", "-target", "bpf", f"-I/usr/include/{os.uname().machine}-linux-gnu",
                                                 "-c", SPOIL, "-o", f"{lab.scratch}/spoil.o").returncode == 0
    rows = {row: count for row, count in ROWS.items() if not options.rows or row.__name__ in options.rows}
    if not made:
        print("  skipped: there is no clang that makes BPF, so no segments are spoilt")
        rows.pop(segments_are_spoilt, None)
    if not options.rows and not options.table and int(os.environ.get("TEST_SHARE", "1")) > 1:
        rows = {row: 1 for row in FEW}
    tallies = {row: Tally() for row in rows}
    while options.injections > 0 and sum(tally.injections for tally in tallies.values()) < options.injections:
        row = draw.choice([row for row in rows if row != packets_are_lost_for_minutes])
        tallies[row].perform(row, draw)
    for row, count in rows.items() if options.injections == 0 else []:
        print(row.__name__, flush=True)
        for _ in range(min(count, options.jobs) if options.table else 1):
            tallies[row].perform(row, draw)
    for row, tally in tallies.items():
        print(f"{row.__name__.replace('_', ' '):32} {tally.jobs - tally.failed:4} of {tally.jobs:4} jobs, {tally.injections:5} injections")
    known_after("killed", 0.5)
    known_after("stopped", 4.5)
    shutil.rmtree(lab.scratch, ignore_errors=True)
    sys.exit(1 if lab.failures else 0)


if __name__ == "__main__":
    main()
