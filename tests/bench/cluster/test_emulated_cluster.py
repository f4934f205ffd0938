#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""emulated-cluster: what a host looks like, what `exec` passes on, how fast NICs are, what is left after any end."""
import os
import shutil
import signal
import subprocess
import sys

import cluster_lab as lab
from cluster_lab import expect, on, up

COPY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "copy_rate.py")
PAYLOAD = (1500 - 52) / (1500 + 14)


def hosts_are_hosts():
    up("--hosts", 3, "--nic", "200mbit,100mbit", "--nics-per-host", 2)
    name = lab.NAME
    result = on(1, "sh", "-c", "hostname; ls /sys/class/net | tr '\\n' ' '; echo; ls /proc | grep -c '^[0-9]'; pwd; "
                               "echo $XM_NICS; cat /proc/sys/net/ipv4/tcp_retries2; stat -f -c %T /dev/shm", cwd="/tmp")
    lines = result.stdout.split("\n")
    expect(lines[0] == f"{name}1", "host name", lines[0])
    expect(lines[1].split() == ["lo", "nic0", "nic1"], "devices", lines[1])
    expect(int(lines[2]) < 10, "processes of the machine are seen:", lines[2])
    expect(lines[3:7] == ["/tmp", "nic0=100000000,nic1=100000000", "3", "tmpfs"], lines)
    on(0, "touch", "/dev/shm/mine")
    expect("mine" in on(0, "ls", "/dev/shm").stdout, "shared memory of a host is lost")
    expect("mine" not in on(1, "ls", "/dev/shm").stdout, "hosts share shared memory")
    status = lab.tool("status", "--name", name)
    expect(f"{name}2" in status.stdout and "nic1 10.77.1.3 200 Mbit/s" in status.stdout, status)
    again = lab.tool("up", "--name", name)
    expect(again.returncode == 2 and again.stderr.count("\n") == 1 and "exists" in again.stderr, again)
    expect(not lab.links(), "devices in the machine's own network:", lab.links())
    lab.down()
    expect(lab.tool("status", "--name", name).returncode == 2, "status of no cluster")
    expect(not os.listdir(os.environ["EMULATED_CLUSTER_DIR"]), "files are left")


def exec_ends_as_the_command_does():
    up("--hosts", 2)
    name = lab.NAME
    expect(on(0, "sh", "-c", "exit 7").returncode == 7, "exit status")
    expect(on(0, "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM, "signal")
    expect(on(0, "/nonexistent").returncode == 2, "no such command")
    expect(on(0, "cat", input="through\n").stdout == "through\n", "standard input")
    # The name of a host: as ssh.
    expect(on(f"{name}1", "echo", "-n", "$((1 + 1))", ";", "hostname").stdout == f"2{name}1\n", "words for a shell")
    expect(on(1, "echo", "$HOME", ";").stdout == "$HOME ;\n", "words as they are")
    # From the head node, whose network is the switch's, to a host.
    nested = on("head", lab.EMULATED_CLUSTER, "exec", "--name", name, f"{name}0", "hostname")
    expect(nested.stdout == f"{name}0\n", "exec in exec", nested)
    # Signals get there; what they kill, dies.
    ready = "trap 'echo got; exit 3' USR1; echo ready; while :; do sleep 0.05; done"
    with lab.start_on(0, "sh", "-c", ready, stdout=subprocess.PIPE) as process:
        expect(process.stdout.readline() == "ready\n", "no start")
        process.send_signal(signal.SIGUSR1)
        expect(process.wait(lab.TIMEOUT) == 3, "the signal was not passed on")
    # Killing the one outside kills the one inside.
    with lab.start_on(1, "sh", "-c", "echo ready; exec sleep 1000", stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        inside = lab.children(process.pid)
        process.kill()
        process.wait()
        expect(len(inside) == 1 and lab.eventually(lambda: not lab.lives(inside[0])), "left inside:", inside)
    # A host that fails alone.
    first = lab.members()["hosts"][1]["pid"]
    os.kill(first, signal.SIGKILL)
    expect(lab.eventually(lambda: "has ended" in lab.tool("status", "--name", name).stdout), "a dead host is shown")
    dead = on(1, "true")
    expect(dead.returncode == 1 and f"{name}1 has ended" in dead.stderr, dead)
    expect(on(0, "true").returncode == 0, "the other host lives on")


def rate(source, address, port, sent_from, bytes_=8 << 20):
    """Bits per second of one TCP connection, without its first megabyte."""
    target = int(address.split(".")[3]) - 1
    with lab.start_on(target, sys.executable, COPY, "receive", str(port), stdout=subprocess.PIPE) as receiver:
        expect(receiver.stdout.readline() == "ready\n", "no receiver")
        sent = on(source, sys.executable, COPY, "send", address, port, bytes_, *sent_from)
        expect(sent.returncode == 0, sent)
        return float(receiver.stdout.readline())


def expect_rate(source, address, mbit, *sent_from):
    """Within 5 %. A machine that is busy elsewhere gets several tries; a NIC without limits fails them all."""
    tries = []
    for attempt in range(12):
        tries.append(rate(source, address, 5000 + attempt, sent_from) / (mbit * 1e6 * PAYLOAD))
        if abs(tries[-1] - 1) < 0.05:
            print(f"  {source} -> {address}: {tries[-1]:.3f} of {mbit} Mbit/s")
            return
    expect(False, source, "->", address, "is not", mbit, "Mbit/s but, as fractions of it,", tries)


def nics_have_their_rates():
    up("--hosts", 2, "--nic", "300mbit,100mbit")
    expect_rate(0, "10.77.0.2", 100)  # the receiver's NIC
    expect_rate(1, "10.77.0.1", 100)  # the sender's
    lab.down()
    up("--hosts", 4, "--uneven", "200mbit,100mbit", "--racks", 2, "--uplink", "150mbit")
    expect_rate(0, "10.77.0.2", 200)
    expect_rate(0, "10.77.1.2", 100)
    expect_rate(1, "10.77.0.3", 150)  # the uplink
    expect_rate(3, "10.77.1.1", 100)
    expect_rate(0, "10.77.0.2", 100, "10.77.1.1")  # the address that it is sent from decides


def many_hosts_reach_each_other():
    up("--hosts", 40, "--nic", "10mbit", "--nics-per-host", 2)
    for host, address in ((0, "10.77.1.40"), (39, "10.77.0.1"), (20, "10.77.0.31")):
        with lab.start_on(int(address.split(".")[3]) - 1, sys.executable, COPY, "receive", "5000",
                          stdout=subprocess.PIPE) as receiver:
            receiver.stdout.readline()
            expect(on(host, sys.executable, COPY, "send", address, 5000, 4096).returncode == 0, host, "->", address)


def a_killed_holder_takes_all_along():
    up("--hosts", 3)
    found = lab.members()
    pids = [found["holder"]] + [host["pid"] for host in found["hosts"]]
    networks = {lab.network_of(pid) for pid in pids}
    with lab.start_on(2, "sleep", "1000") as process:
        expect(lab.eventually(lambda: lab.children(process.pid)), "no start")
        pids += lab.children(process.pid)
        os.kill(found["holder"], signal.SIGKILL)
        expect(process.wait(lab.TIMEOUT) == -signal.SIGKILL, "what ran inside")
    lab.expect_nothing_left(networks, pids, "kill -9 of the holder")
    # Its file is a leftover, and known as one.
    expect(os.listdir(os.environ["EMULATED_CLUSTER_DIR"]) == [lab.NAME + ".json"], "no leftover")
    expect(lab.tool("status", "--name", lab.NAME).returncode == 2, "a leftover passes for a cluster")
    up("--hosts", 1)


def half_a_cluster_is_none():
    fake = os.path.join(lab.scratch, "bin")
    os.makedirs(fake)
    # The network's commands fail at the last step: the queues of the third host, after all else.
    with open(os.path.join(fake, "tc"), "w", encoding="ascii") as file:
        file.write('#!/bin/sh\nn=$(hostname); echo "$n $(readlink /proc/self/ns/net)" >>$LIST\n'
                   'case $n in *2) echo "no such queue" >&2; exit 1;; esac\nexec $REAL "$@"\n')
    os.chmod(os.path.join(fake, "tc"), 0o755)
    listing = os.path.join(lab.scratch, "list")
    real = shutil.which("tc", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    environment = dict(os.environ, PATH=fake + ":" + os.environ["PATH"], LIST=listing, REAL=real)
    result = lab.tool("up", "--name", lab.NAME, "--hosts", 4, env=environment)
    expect(result.returncode == 1 and "host 2: tc: no such queue" in result.stderr and
           result.stderr.count("\n") == 1, result)
    with open(listing, encoding="ascii") as file:
        networks = {line.split()[1] for line in file}
    expect(len(networks) >= 2, "tc was not run:", networks)
    lab.expect_nothing_left(networks, [], "an error halfway")
    expect(not os.listdir(os.environ["EMULATED_CLUSTER_DIR"]), "files are left")
    # No command at all.
    empty = os.path.join(lab.scratch, "empty")
    os.makedirs(empty)
    if not any(os.path.exists(folder + "ip") for folder in ("/usr/sbin/", "/sbin/")):
        result = lab.tool("up", "--name", lab.NAME, env=dict(os.environ, PATH=empty))
        expect("install the package iproute2" in result.stderr, result)


def an_interrupted_up_leaves_nothing():
    fake = os.path.join(lab.scratch, "slow")
    os.makedirs(fake)
    listing = os.path.join(lab.scratch, "slow-list")
    with open(os.path.join(fake, "tc"), "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nreadlink /proc/self/ns/net >>$LIST\nexec sleep 1000\n")
    os.chmod(os.path.join(fake, "tc"), 0o755)
    environment = dict(os.environ, PATH=fake + ":" + os.environ["PATH"], LIST=listing)
    for number in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen([lab.EMULATED_CLUSTER, "up", "--name", lab.NAME], env=environment) as process:
            expect(lab.eventually(lambda: os.path.exists(listing)), "tc was not run")
            holder = lab.children(process.pid)
            process.send_signal(number)
            process.wait(lab.TIMEOUT)
        with open(listing, encoding="ascii") as file:
            lab.expect_nothing_left(set(file.read().split()), holder, "signal", number, "while it is made")
        os.remove(listing)
    up("--hosts", 1)


def without_root():
    """As nobody, in a user namespace."""
    nobody = lab.as_nobody()
    if nobody is None:
        return
    tool, name = lab.EMULATED_CLUSTER, lab.NAME
    made = nobody(tool, "up", "--name", name, "--hosts", 2)
    expect(made.returncode == 0, made)
    shown = nobody(tool, "exec", "--name", name, 1, "sh", "-c", "hostname; ls /sys/class/net; exit 4")
    expect(shown.returncode == 4 and shown.stdout == f"{name}1\nlo\nnic0\n", shown)
    nested = nobody(tool, "exec", "--name", name, "head", tool, "exec", "--name", name, 0, "hostname")
    expect(nested.stdout == f"{name}0\n", nested)
    expect(nobody(tool, "down", "--name", name).returncode == 0, "down as nobody")


def commands_have_their_share():
    """A busy loop gets its part of a core, two of them each theirs; the groups go with the commands, and those of killed
    ones with the next command."""
    up("--hosts", 2, "--core-share", 0.1)
    expect("0.1 of a core for each command" in lab.tool("status", "--name", lab.NAME).stdout, "status")
    tried = on(0, "true")
    if tried.returncode != 0:
        expect("a share of a core needs root and the cpu controller" in tried.stderr, tried)
        print("  no shares of cores:", tried.stderr.strip())
        return
    loop = "import time as t\nend, spent = t.monotonic() + 2, t.process_time()\nwhile t.monotonic() < end: pass\nprint((t.process_time() - spent) / 2)"
    both = [lab.start_on(host, sys.executable, "-c", loop, stdout=subprocess.PIPE) for host in (0, 1)]
    for process in both:
        got = float(process.communicate(timeout=lab.TIMEOUT)[0])
        expect(0.05 < got < 0.125, "0.1 of a core is", got)
        expect(not lab.core_share_of(process.pid), "the group is left")
    threads = os.listdir(f"/proc/{lab.members()['holder']}/task")
    expect(len(threads) == 1 + len(os.sched_getaffinity(0)), "not one thread for each core", threads)
    with lab.start_on(0, "sh", "-c", "echo ready; exec sleep 1000", stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        expect(lab.core_share_of(process.pid), "no group")
        process.kill()
    expect(lab.eventually(lambda: on(1, "true").returncode == 0 and not lab.core_share_of(process.pid)), "a killed one's is left")


def bad_input_is_refused():
    for sentence, *arguments in (
            ("'fast' is not a rate such as 1gbit", "up", "--nic", "fast"),
            ("'1' is not a rate", "up", "--nic", "1"),
            ("1tbit", "up", "--nic", "1tbit"),
            ("--nic: 1kbit is outside 64 kbit/s", "up", "--nic", "1kbit"),
            ("--uneven: '' is not a rate", "up", "--uneven", "1gbit,"),
            ("--nic and --uneven both", "up", "--nic", "1gbit", "--uneven", "1gbit,2gbit"),
            ("--uneven has the rates of 2 NICs, but --nics-per-host says 3", "up", "--uneven", "1gbit,2gbit",
             "--nics-per-host", "3"),
            ("--hosts: 0 is outside 1 … 128", "up", "--hosts", "0"),
            ("5 hosts do not fill 2 racks evenly", "up", "--hosts", "5", "--racks", "2", "--uplink", "1gbit"),
            ("--racks is given but --uplink is not", "up", "--racks", "2"),
            ("--uplink is given but --racks is not", "up", "--uplink", "1gbit"),
            ("--mtu: 100 is outside", "up", "--mtu", "100"),
            ("--core-share: 2 is outside", "up", "--core-share", "2"),
            ("'a b' cannot be the name of a cluster", "up", "--name", "a b"),
            ("'../x' cannot be the name", "up", "--name", "../x"),
            ("'../x' cannot be the name", "down", "--name", "../x"),
            ("cannot be the name of a cluster", "up", "--name", "a" * 24),
            ("there is no cluster of the name 'nosuch'", "down", "--name", "nosuch"),
            ("there is no cluster of the name 'nosuch'", "exec", "--name", "nosuch", "0", "true"),
            ("a host and a command are needed", "exec", "0"),
            ("a host and a command are needed", "exec"),
            ("unknown option --nam", "exec", "--nam", "0", "true"),
            ("unknown command 'ub'; did you mean 'up'?", "ub"),
            ("a command is needed",)):
        result = lab.tool(*arguments)
        expect(result.returncode == 2 and result.stdout == "" and result.stderr.count("\n") == 1 and
               sentence in result.stderr and result.stderr.startswith("emulated-cluster"), arguments, result)
    up("--hosts", 2)
    for host in ("2", "-1", "01", "x1", lab.NAME, lab.NAME + "2"):
        result = on(host, "true") if host != "-1" else lab.tool("exec", "--name", lab.NAME, "--", host, "true")
        expect(result.returncode == 2 and "is no host of the cluster" in result.stderr, host, result)
    folder = os.environ["EMULATED_CLUSTER_DIR"]
    lab.down()
    warned = lab.tool("up", "--name", lab.NAME, "--hosts", 9, "--nic", "1gbit")
    expect(warned.returncode == 0 and warned.stderr.count("\n") == 1 and "add up to 9 Gbit/s" in warned.stderr, warned)
    refused = lab.tool("up", "--name", "other", env=dict(os.environ, EMULATED_CLUSTER_DIR="/proc/nothing"))
    expect(refused.returncode == 1 and "is no folder of ours" in refused.stderr, refused, folder)


lab.run([hosts_are_hosts, exec_ends_as_the_command_does, nics_have_their_rates, many_hosts_reach_each_other,
         a_killed_holder_takes_all_along, half_a_cluster_is_none, an_interrupted_up_leaves_nothing, without_root,
         commands_have_their_share, bad_input_is_refused])
