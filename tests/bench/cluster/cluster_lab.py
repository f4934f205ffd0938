# SPDX-License-Identifier: Apache-2.0
"""What the tests of emulated clusters share: running the commands, looking for what is left of them."""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

EMULATED_CLUSTER = os.environ["EMULATED_CLUSTER"]
TIMEOUT = 60
SKIPPED = 77
NAME = f"t{os.getpid()}"

# Who runs this in the background may have had SIGINT ignored, which everything started here would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

failures = []
scratch = tempfile.mkdtemp()
os.environ["EMULATED_CLUSTER_DIR"] = os.path.join(scratch, "clusters")


def expect(condition, *what):
    if not condition:
        failures.append(" ".join(str(word) for word in what))
        print("FAILED:", failures[-1], flush=True)


def command(*arguments, **more):
    return subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=120, check=False, **more)


def tool(*arguments, **more):
    return command(EMULATED_CLUSTER, *arguments, **more)


def up(*arguments, **more):
    result = tool("up", "--name", NAME, *arguments, **more)
    expect(result.returncode == 0 and result.stdout == "" and result.stderr == "", "up", arguments, result)


def on(host, *arguments, **more):
    return tool("exec", "--name", NAME, host, *arguments, **more)


def start_on(host, *arguments, **more):
    return subprocess.Popen([EMULATED_CLUSTER, "exec", "--name", NAME, str(host), *arguments], text=True, **more)


def down():
    result = tool("down", "--name", NAME)
    expect(result.returncode == 0, "down", result)


def members():
    return json.loads(tool("status", "--name", NAME, "--json").stdout)


def state_of(pid):
    """State letter and parent of a process; X when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="latin1") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[1])
    except (OSError, IndexError):
        return "X", 0


def lives(pid):
    return state_of(pid)[0] not in "XZ"


def network_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def users(networks):
    """Processes that are in one of these network namespaces."""
    pids = [int(path.split("/")[2]) for path in glob.glob("/proc/[0-9]*/ns")]
    return [pid for pid in pids if lives(pid) and network_of(pid) in networks]


def children(parent):
    pids = [int(path.split("/")[2]) for path in glob.glob("/proc/[0-9]*/ns")]
    return [pid for pid in pids if state_of(pid)[1] == parent and lives(pid)]


def eventually(condition):
    end = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def core_share_of(pid):
    """The control group of a command that has a share of a core."""
    return [root for root in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup") if os.path.exists(f"{root}/emulated-cluster-{pid}")]


def links():
    """Names of the network devices of the machine itself that have our names."""
    return [name for name in os.listdir("/sys/class/net") if name[:2] in ("p0", "b0", "u0", "d0")]


def expect_nothing_left(networks, pids, *what):
    expect(eventually(lambda: not users(networks)), *what, "leaves processes", users(networks))
    expect(eventually(lambda: not any(lives(pid) for pid in pids)), *what, "leaves", pids)
    expect(not links(), *what, "leaves devices", links())


def skip_unless_possible():
    result = tool("up", "--name", NAME, "--hosts", 1)
    if result.returncode != 0 and "needs root or unprivileged user namespaces" in result.stderr:
        print("skipped:", result.stderr.strip())
        shutil.rmtree(scratch, ignore_errors=True)
        sys.exit(SKIPPED)
    expect(result.returncode == 0, "up", result)
    down()


def as_nobody():
    """A function that runs commands as the user nobody; None, with the reason printed, where that cannot be."""
    if os.geteuid() != 0:
        print("  skipped: not root, so the other tests are without it")
        return None
    folder = os.path.join(scratch, "nobody")
    os.makedirs(folder, exist_ok=True)
    os.chown(folder, 65534, 65534)
    os.chmod(scratch, 0o755)
    environment = dict(os.environ, EMULATED_CLUSTER_DIR=folder)

    def run_it(*arguments):
        return command("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *arguments, env=environment,
                       cwd="/tmp")

    if run_it(EMULATED_CLUSTER, "--version").returncode != 0:
        print("  skipped: nobody may not run", EMULATED_CLUSTER)
        return None
    made = run_it(EMULATED_CLUSTER, "up", "--name", NAME, "--hosts", 1)
    if "needs root or unprivileged user namespaces" in made.stderr:
        print("  skipped:", made.stderr.strip())
        return None
    expect(made.returncode == 0, "up as nobody", made)
    expect(run_it(EMULATED_CLUSTER, "down", "--name", NAME).returncode == 0, "down as nobody")
    return run_it


def run(tests):
    """Runs the functions in turn; each leaves no cluster behind, whatever happens."""
    skip_unless_possible()
    for test in tests:
        print(test.__name__, flush=True)
        try:
            test()
        except Exception as problem:  # the next test is of interest all the same
            expect(False, test.__name__, repr(problem))
        tool("down", "--name", NAME)
    shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(1 if failures else 0)
