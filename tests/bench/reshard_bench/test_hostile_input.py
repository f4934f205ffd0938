#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every input file, output file and text of reshard-bench, pipeline-bench and autopar, given as what it must not be: exit status 2,
one sentence, at once, with nothing made and no more than 80 characters of the input repeated."""
import concurrent.futures
import json
import os
import re
import socket
import subprocess
import tempfile
import time

BENCH, PIPELINE, AUTOPAR = (os.environ[name] for name in ("RESHARD_BENCH", "PIPELINE_BENCH", "AUTOPAR"))
CLUSTER = os.path.join(os.environ["SOURCE_DIR"], "tests/fixtures/profiles/lab-2x4.json")
SYSTEM = os.path.join(os.environ["SOURCE_DIR"], "tests/fixtures/models/qwen3-32b-tp2pp4dp2-to-tp1dp16-32gpus-gb200.json")
MODEL = os.path.join(os.environ["SOURCE_DIR"], "tests/fixtures/models/qwen3-32b.model.json")
OWN = [BENCH, "-n", "8", "--src-mesh", "2x2", "--dst-mesh", "2x2", "--src-spec", "S0R", "--dst-spec", "RS1", "--shape", "8x8"]
PLAN = [AUTOPAR, "plan", "--model", "mlp2", "--cluster", CLUSTER]
LONGEST_REPEATED, LIMIT_S = 80, 20

INPUTS = [[BENCH, "--dry-run", "--plan", None], [BENCH, "--show-topology", "--topology", None], OWN + ["--dry-run", "--profile", None],
          [BENCH, "--dry-run", "--model-config", None, "--system-config", SYSTEM],
          [BENCH, "--dry-run", "--model-config", MODEL, "--system-config", None],
          [BENCH, "--dry-run", "--model-config", MODEL, "--system-config", SYSTEM, "--shard-table", None],
          [PIPELINE, None], [AUTOPAR, "plan", "--model", "mlp2", "--cluster", None], [AUTOPAR, "plan", "--request", None],
          [AUTOPAR, "plan", "--like", "piper", None], [AUTOPAR, "plan", "--like", "dnn-partitioning", None],
          [AUTOPAR, "shard", None, "--mesh", "2x2"], [AUTOPAR, "shard", "mlp2", "--mesh", "2x2", "--cluster", None],
          [AUTOPAR, "simulate", None], [AUTOPAR, "solve", None, "5"], [AUTOPAR, "explain", None, "--cluster", CLUSTER],
          [AUTOPAR, "export", None, "--to", "jax"], [AUTOPAR, "import", None], [AUTOPAR, "probe", "--compare", None, CLUSTER],
          [AUTOPAR, "probe", "--compare", CLUSTER, None], [AUTOPAR, "probe", "--import", None, "--cluster", CLUSTER, "-o", "/dev/null"],
          [AUTOPAR, "compare", "--model", "mlp2", "--cluster", None], PLAN + ["--layers", None]]
OUTPUTS = ([OWN + more for more in (["--dry-run", "--dump-plan", None], ["--dry-run", "--plot", None], ["-J", None], ["--trace", None])] +
           [[PIPELINE, "x.json", option, None] for option in ("-J", "--trace", "--plot")] +
           [PLAN + [option, None] for option in ("-o", "--plot")] +
           [[AUTOPAR, "shard", "mlp2", "--mesh", "2x2", option, None] for option in ("--plot", "--export-jax", "--export-hlo", "--export-torch")] +
           [[AUTOPAR, "simulate", "x.json", option, None] for option in ("--plot", "--trace")] +
           [[AUTOPAR, "export", "x.json", "--to", "jax", "-o", None], [AUTOPAR, "import", "mlp2", "-o", None],
            [AUTOPAR, "probe", "-n", "2", "-o", None]])
TEXTS = ([OWN + [option, None] for option in ("--src-spec", "--dst-spec", "--shape", "--src-mesh", "--src-ranks", "--dtype", "--partition",
                                              "--strategy", "--scheduler", "--transport", "-i", "--nic-gbps", "--memory-limit", "--scale")] +
         [[BENCH, "--case", None], [BENCH, "--suite", None], [BENCH, None], PLAN + ["--schedule", None],
          [AUTOPAR, None], [AUTOPAR, "shard", "mlp2", "--mesh", None], [AUTOPAR, "shard", None, "--mesh", "2x2"]])
SETTINGS = ["XM_CHUNK_SIZE", "XM_TIMEOUT", "XM_LOG"]


def files(folder):
    os.mkfifo(os.path.join(folder, "fifo"))
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.join(folder, "socket"))
    with open(os.path.join(folder, "huge"), "wb") as file:
        file.truncate(5 << 30)
    return {"/dev/zero": "no regular file", os.path.join(folder, "fifo"): "no regular file", os.path.join(folder, "socket"): "no regular file",
            folder: "Is a directory", os.path.join(folder, "none.json"): "", os.path.join(folder, "huge"): "larger than"}


def long_names(folder):
    """Documents whose keys and words are a million bytes long."""
    name = "é" * 500000
    documents = {"tensor": {name: {"shape": [64, 64], "dtype": "BF16"}}, "key": {name: 1}, "format": {"format": name, "version": 1}}
    for key, document in documents.items():
        with open(os.path.join(folder, key + ".json"), "w", encoding="utf-8") as file:
            json.dump(document, file, ensure_ascii=False)
        yield os.path.join(folder, key + ".json")


def filled(command, value):
    return [value if word is None else word for word in command]


def check(command, expected="", **settings):
    start = time.monotonic()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, env=dict(os.environ, **settings))
    what = ([word[:60] for word in command], {key: value[:60] for key, value in settings.items()}, done.returncode, done.stderr[:400])
    sentence = done.stderr.decode("utf-8")  # raises where a character is cut in two
    assert done.returncode == 2 and done.stdout == b"" and sentence.count("\n") == 1, what
    assert expected in sentence and time.monotonic() - start < LIMIT_S, what
    repeated = re.findall(r"[é2x]{%d,}" % (LONGEST_REPEATED + 1), sentence)
    assert not repeated and len(sentence) < 1100, what


def command_lines(folder):
    for command in INPUTS:
        for path, sentence in files_of_input.items():
            yield filled(command, path), sentence, {}
        for path in long_documents:
            yield filled(command, path), "", {}
    for command in OUTPUTS:
        for path in ("/proc/x", folder, os.path.join(folder, "no", "x"), "/dev/null/x"):
            yield filled(command, path), "cannot write '", {}
    for command in TEXTS:
        for text in ("é" * 50000, "2x" * 5000 + "2", "é" * 81):
            yield filled(command, text), "", {}
    for name in SETTINGS:
        yield [BENCH, "--list"], name, {name: "é" * 50000}
    yield [BENCH, "--list"], "XM_CHUNK_SIZE: '0' is no size", {"XM_CHUNK_SIZE": "0"}
    yield [BENCH, "--list"], "XM_LOG_FILE", {"XM_LOG_FILE": "é" * 50000 + "%d"}
    yield OWN + ["--shape", "0x8x8"], "--shape: '0x8x8' has an extent of 0 in dimension 0", {}
    yield OWN + ["--memory-limit", "0"], "--memory-limit: 0 bytes hold nothing", {}
    yield PLAN + ["--memory-limit", "0"], "--memory-limit: 0 bytes hold nothing", {}


with tempfile.TemporaryDirectory() as scratch:
    files_of_input, long_documents = files(scratch), list(long_names(scratch))
    before = sorted(os.listdir(scratch))
    lines = list(command_lines(scratch))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for _ in pool.map(lambda line: check(line[0], line[1], **line[2]), lines):
            pass
    assert sorted(os.listdir(scratch)) == before, os.listdir(scratch)
    print(f"{len(lines)} command lines refused with one sentence each")
