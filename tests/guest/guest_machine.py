# SPDX-License-Identifier: Apache-2.0
"""Virtual machines that run one job each: starting them, passing on what they print, and ending them in time.

A machine shares a folder of this process with its guest (mounted at /run/guest there):

    start, wire, ranks, ...   the scripts of `inside`, which the guest runs
    job                       shell script with the settings of this run
    out/                      what the job leaves for the host
    result, dmesg             exit status and kernel log, written at the end
"""
import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from guest_kernel import GuestError, HERE, cache_folder, prepare, say, write_initramfs

QEMU = "qemu-system-x86_64"
BOOT_LIMIT_S = 180  # 4 s on an idle machine, where the processor is emulated; other jobs may keep ours from running
PEER_LIMIT_S = 40  # what the other guest has to end when the job of one has failed
TIMED_OUT = 124
# A processor that the machine below does not let run looks stuck from inside. What is stuck has the job's limit.
PATIENT = " watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=300"
# What a kernel says about itself when it is not well.
KERNEL_TROUBLE = re.compile(r"BUG:|WARNING:|Oops|Call Trace|Kernel panic|blocked for more than")


def accelerator():
    """Real virtualization where the processor has it: /dev/kvm alone may be an interpreter much slower than qemu's own."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        virtual = re.search(r"^flags\s*:.*\b(vmx|svm)\b", file.read(), re.M)
    return "kvm" if virtual and os.access("/dev/kvm", os.R_OK | os.W_OK) else "tcg"


def ticks_per_millisecond():
    """Frequency of this machine's time stamp counter, which is what an emulated processor reads too. A guest that measures
    it while its machine is busy gets a clock that is several times too fast."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("0f31 48c1e220 4809d0 c3"))  # rdtsc; shl $32, %rdx; or %rdx, %rax; ret
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))

    def reading():
        """Time and ticks of one moment: of several tries the one that took the shortest time."""
        tries = []
        for _ in range(10):
            before, ticks, after = time.monotonic_ns(), counter(), time.monotonic_ns()
            tries.append((after - before, before, ticks))
        return min(tries)[1:]

    first = reading()
    time.sleep(0.05)
    last = reading()
    return (last[1] - first[1]) * 1000000 // (last[0] - first[0])


def die_with(parent):
    """Runs in the child before qemu: however the parent ends, the kernel ends the child."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def quoted(path):
    """A path in an option of qemu, where commas separate."""
    return path.replace(",", ",,")


def remove_leftovers(runs):
    """Folders of runs whose process was killed: nobody holds their lock."""
    for entry in os.scandir(runs):
        try:
            with open(os.path.join(entry.path, "lock"), "w", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
        except OSError:
            pass


@contextlib.contextmanager
def run_folder():
    runs = os.path.join(cache_folder(), "runs")
    os.makedirs(runs, exist_ok=True)
    remove_leftovers(runs)
    path = tempfile.mkdtemp(dir=runs)
    with open(os.path.join(path, "lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


class Machine:
    """One virtual machine and its job."""

    def __init__(self, node, nodes, folder):
        self.node = node
        self.name = f"guest{node}" if nodes > 1 else "guest"
        self.folder = os.path.join(folder, self.name)
        self.share = os.path.join(self.folder, "share")
        self.process = None
        os.makedirs(os.path.join(self.share, "out"))
        for script in os.listdir(os.path.join(HERE, "inside")):
            shutil.copy(os.path.join(HERE, "inside", script), self.share)

    def path(self, name):
        return os.path.join(self.share, name)

    def set_job(self, settings, environment, command):
        """What the guest runs: variables for the script `start`, variables for the command, the command."""
        lines = [f"{name}={shlex.quote(str(value))}" for name, value in settings.items()]
        lines += [f"export {name}={shlex.quote(str(value))}" for name, value in environment.items()]
        with open(self.path("job"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        with open(self.path("command"), "w", encoding="utf-8") as file:
            file.write("exec " + " ".join(map(shlex.quote, command)) + "\n")

    def boot(self, kernel, options, wire=None):
        """Starts qemu; wire: a socket that is the other end of this machine's only network device."""
        accel = accelerator()
        emulated = accel == "tcg"
        # Emulated processors share one steady clock, which the kernel does not believe by itself; and on a busy machine
        # it would miss the ticks by which it tests its timer, and stop.
        clock = f" no_timer_check tsc=reliable clocksource=tsc tsc_early_khz={ticks_per_millisecond()}" if emulated else ""
        initramfs = os.path.join(self.folder, "initramfs.cpio")
        write_initramfs(kernel, initramfs)
        arguments = [
            QEMU, "-machine", "q35", "-accel", "tcg,thread=multi" if emulated else "kvm",
            "-cpu", "max" if emulated else "host", "-smp", str(options.cpus), "-m", str(options.memory),
            "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
            "-kernel", os.path.join(kernel, "vmlinux"), "-initrd", initramfs,
            "-append", "console=ttyS0 quiet panic=-1 oops=panic mitigations=off" + PATIENT + clock,
            "-serial", "file:" + quoted(os.path.join(self.folder, "serial.log")),
            "-chardev", "stdio,id=output,signal=off", "-device", "virtio-serial-pci",
            "-device", "virtserialport,chardev=output",
            "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
            "-virtfs", f"local,path={quoted(self.share)},mount_tag=run,security_model=none"]
        if wire is not None:
            arguments += ["-netdev", f"socket,id=wire,fd={wire.fileno()}",
                          "-device", f"virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:00:00:{self.node + 1:02x}"]
        with open(os.path.join(self.folder, "qemu.log"), "wb") as log:
            try:
                # qemu takes the end of its input for the end of the port that the job prints to.
                self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                                pass_fds=[wire.fileno()] if wire is not None else [],
                                                preexec_fn=functools.partial(die_with, os.getpid()))
            except OSError as problem:
                raise GuestError(f"{QEMU}: {problem.strerror}; install qemu-system-x86") from problem

    def result(self):
        """Exit status of the job; None while there is none."""
        try:
            with open(self.path("result"), encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            return None

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()

    def text_of(self, path):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def kernel_trouble(self):
        """Lines of the guest's kernel log that must not be there."""
        log = self.text_of(self.path("dmesg")) or self.text_of(os.path.join(self.folder, "serial.log"))
        return [line for line in log.splitlines() if KERNEL_TROUBLE.search(line)]

    def explain(self):
        """What a failed machine left behind, on standard error."""
        for title, path in (("qemu", "qemu.log"), ("serial console", "serial.log"), ("kernel log", "share/dmesg")):
            lines = self.text_of(os.path.join(self.folder, path)).replace("\r", "").splitlines()
            for line in lines[-25:]:
                print(f"guest: {self.name}: {title}: {line}", file=sys.stderr)


class Output:
    """Passes on what machines print, whole lines at a time when there are several."""

    def __init__(self, machines):
        self.prefix = len(machines) > 1
        self.rest = {machine: b"" for machine in machines}
        self.selector = selectors.DefaultSelector()
        for machine in machines:
            os.set_blocking(machine.process.stdout.fileno(), False)
            self.selector.register(machine.process.stdout, selectors.EVENT_READ, machine)

    def pass_on(self, timeout):
        """Returns False when nothing came within the timeout."""
        ready = self.selector.select(timeout)
        for key, _ in ready:
            data = key.fileobj.read()
            if data:
                self.write(key.data, data)
            elif data == b"":
                self.selector.unregister(key.fileobj)
        return bool(ready)

    def write(self, machine, data):
        if self.prefix:
            lines = (self.rest[machine] + data).split(b"\n")
            self.rest[machine] = lines.pop()
            data = b"".join(machine.name.encode() + b": " + line + b"\n" for line in lines)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def supervise(machines, limit):
    """Waits until every job has a result, a machine is gone without one, or time is up; returns a problem's status and
    sentence."""
    output = Output(machines)
    deadline = time.monotonic() + BOOT_LIMIT_S + limit
    problem = 0, ""
    while problem[0] == 0 and any(machine.result() is None for machine in machines):
        output.pass_on(0.05)
        if any(machine.result() for machine in machines):
            deadline = min(deadline, time.monotonic() + PEER_LIMIT_S)
        for machine in machines:
            if machine.process.poll() is not None and machine.result() is None:
                problem = 1, f"{machine.name}: the machine ended without a result"
            elif machine.result() is None and time.monotonic() > deadline:
                problem = TIMED_OUT, f"{machine.name}: no result in time"
    while output.pass_on(0):
        pass
    return problem


def run(machines, options):
    """Boots the machines, joined by a wire when there are two, and returns the exit status of the whole."""
    kernel = prepare()
    wires = socket.socketpair() if len(machines) == 2 else [None]
    try:
        for machine, wire in zip(machines, wires):
            machine.boot(kernel, options, wire)
        for wire in filter(None, wires):
            wire.close()
        status, sentence = supervise(machines, options.timeout)
    finally:
        for machine in machines:
            machine.stop()
    if status == 0:
        status = next((machine.result() for machine in machines if machine.result()), 0)
        sentence = f"the job ended with status {status}"
    for machine in machines:
        if status == 0 and machine.kernel_trouble():
            status, sentence = 1, f"{machine.name}: its kernel complains: {machine.kernel_trouble()[0]}"
    if status != 0:
        for machine in machines:
            machine.explain()
        say(sentence)
    return status
