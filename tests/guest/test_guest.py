#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tool itself: what it returns, what it refuses to call a success, and that nothing is left of it."""
import glob
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GUEST = os.path.join(HERE, "guest")
TIMEOUT = 60
failures = []

# Who runs this in the background may have had SIGINT ignored, which everything started here would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


def expect(condition, *what):
    if not condition:
        failures.append(" ".join(str(word) for word in what))
        print("FAILED:", failures[-1], flush=True)


def guest(*arguments):
    return subprocess.run([GUEST, *map(str, arguments)], capture_output=True, text=True, timeout=400, check=False)


def runs():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.listdir(os.path.join(base, "crossmesh", "guest", "runs"))


def children(parent):
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="latin1") as file:
                state, its_parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(its_parent) == parent and state != "Z":
            found.append(int(path.split("/")[2]))
    return found


def eventually(condition):
    end = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def status_output_and_files_come_back():
    with tempfile.TemporaryDirectory() as folder:
        script = "echo to the host; echo $WORD >$OUT/word; touch /usr/changed; ls /sys/class/infiniband; pwd; exit 7"
        result = guest("run", "--env", "WORD=a b", "--out", folder, "--", "sh", "-c", script)
        expect(result.returncode == 7, result)
        expect(result.stdout == f"to the host\nrxe0\nrxe1\n{os.getcwd()}\n", result.stdout)
        expect("serial console: ready" in result.stderr and "ended with status 7" in result.stderr, result.stderr)
        with open(os.path.join(folder, "word"), encoding="ascii") as file:
            expect(file.read() == "a b\n", "the file that came back")
    expect(not os.path.exists("/usr/changed"), "the guest changed a file of the host")


def a_complaint_of_the_kernel_is_a_failure():
    result = guest("run", "--", "sh", "-c", "echo 'WARNING: nobody is at home' >/dev/kmsg")
    expect(result.returncode == 1 and "its kernel complains" in result.stderr, result)


def too_slow_is_a_failure():
    result = guest("run", "--timeout", "0.5", "--", "sleep", "100")
    expect(result.returncode == 124, result)


def tests_that_all_skip_are_a_failure():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "CTestTestfile.cmake"), "w", encoding="ascii") as file:
            file.write('add_test(skips "/bin/sh" "-c" "exit 77")\n'
                       'set_tests_properties(skips PROPERTIES LABELS "verbs-inner" SKIP_RETURN_CODE 77)\n')
        result = guest("ctest", folder)
        expect(result.returncode == 1 and "none of 1 tests was run: 1 were skipped" in result.stderr, result)
        result = guest("ctest", os.path.join(folder, "nothing"))
        expect(result.returncode == 1 and "is no build directory" in result.stderr, result)


def an_end_by_force_leaves_nothing():
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        before = set(runs())
        with subprocess.Popen([GUEST, "run", "--", "sleep", "1000"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            expect(eventually(lambda: children(process.pid)), "no machine was started")
            machines = children(process.pid)
            process.send_signal(number)
            expect(process.wait(TIMEOUT) == status, number, process.returncode)
        expect(eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in machines)), number, "leaves", machines)
        left = set(runs()) - before
        expect(number == signal.SIGKILL or not left, number, "leaves", left)
    # A killed process cannot tidy up; the next run does. This one also shows that a pair's guests reach each other.
    result = guest("pair", "--", "sh", "-c", "echo node $NODE; [ $NODE = 0 ]")
    expect(result.returncode == 1 and "guest0: node 0" in result.stdout and "guest1: node 1" in result.stdout, result)
    expect(not left & set(runs()), "left for good:", left)


tests = {"jobs": (status_output_and_files_come_back, a_complaint_of_the_kernel_is_a_failure),
         "ends": (too_slow_is_a_failure, tests_that_all_skip_are_a_failure, an_end_by_force_leaves_nothing)}
for test in tests[sys.argv[1]]:
    begin = time.monotonic()
    test()
    print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
sys.exit(1 if failures else 0)
