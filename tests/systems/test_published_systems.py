# SPDX-License-Identifier: Apache-2.0
"""Every command of docs/published-systems.md runs and says what the page says that it does; all systems are on the page.

Environment: SOURCE_DIR, AUTOPAR, RESHARD_BENCH.
"""

import concurrent.futures
import itertools
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["SOURCE_DIR"]
PROGRAMS = {"autopar": os.environ["AUTOPAR"], "reshard-bench": os.environ["RESHARD_BENCH"],
            "collective-bench": os.path.join(os.path.dirname(os.environ["RESHARD_BENCH"]), "collective-bench")}
SYSTEMS = """ColocRL HDP GPipe torchgpipe GDP Pesto vPipe Spotlight Placeto REGAL PipeDream PipeDream-2BW DNN-partitioning HetPipe
DAPPLE PipeTransformer Chimera TAPP RaNNC HeterPS FTPipe OptCNN FlexFlow Tofu AccPar TensorOpt ROC Double_Recursive PaSE P² Automap
Auto-MAP Piper GSPMD DistIR Neo Adaptive_Paddle Alpa TASO Megatron_1D,_2D,_2.5D,_3D_TP Scotch Kernighan-Lin Karmarkar-Karp CPLEX Gopher
ERNIE_3.0_Titan Inspur_245.7B Parameter_Server Ray SwitchML Accordion Megatron-LM Adasum PipeMare PatrickStar Varuna Unity ZeRO++ Blink
ATP PET LIBRA cross-mesh_resharding Pollux Proteus DistSim Rhino Galvatron-BMW TeraPipe Compressing_activations ParallelSpec ViR MEX
Spontaneous_asynchronicity Streaming_parallelism""".split()


def rows():
    with open(os.path.join(SOURCE, "docs/published-systems.md"), encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            if line.startswith("| ") and len(cells) == 4 and cells[0] != "system":
                yield cells


def fixture(name):
    with open(os.path.join(SOURCE, "tests/fixtures", name), encoding="utf-8") as file:
        return json.load(file)


def make_plans(place):
    """What the page says that its commands begin with."""
    shutil.copy(os.path.join(SOURCE, "tests/fixtures/profiles/lab-2x4.json"), os.path.join(place, "cluster.json"))
    os.symlink(os.path.join(SOURCE, "tests/fixtures"), os.path.join(place, "fixtures"))
    for more in ("gpt-1.3b --global-batch 64 --micro-batches 16 -o plan.json",
                 "fixtures/graph/equal4.json --hosts 1 --global-batch 32 --micro-batches 4 -o equal.json"):  # fmt: skip
        plan = f"plan --cluster cluster.json --stages 4 --schedule 1f1b --model {more}"
        subprocess.run([PROGRAMS["autopar"], *plan.split()], cwd=place, check=True, capture_output=True, timeout=600)


def least_of_cuts(chain):
    """The least largest load of a chain's parts, each with what it sends and receives: by trying all cuts."""
    times, sent = [node["fpgaLatency"] for node in chain["nodes"]], [0, *(edge["cost"] for edge in chain["edges"]), 0]
    cuts = itertools.combinations(range(1, len(times)), chain["maxFPGAs"] - 1)
    return min(max(sum(times[a:b]) + sent[a] + sent[b] for a, b in itertools.pairwise([0, *cut, len(times)])) for cut in cuts)


def by_hand(plan):
    """Figures of the page from their papers' formulas and the profile's numbers."""
    cluster, mib = fixture("profiles/lab-2x4.json"), 2**20
    nic, flops, memory = cluster["nic"]["bytes_per_s"], cluster["device"]["flop_per_s"], cluster["device"]["memory_bytes_per_s"]
    inside = dict(cluster["curves"]["intra_host"])
    # TensorOpt: on two devices a gather is one message of half a tensor, a sum two. Adam has seven tensors of a weight read or
    # written, and 16 bytes of it kept.
    products = 5 * 2 * 8192 * 1024**2 / 2 / flops + 3 * 16 * mib / memory
    between = inside[mib] + (inside[4 * mib] - inside[mib]) / 3  # of 2 MiB
    replicated = products + 4 * between + 7 * 8 * mib / memory
    cut = products + 3 * inside[16 * mib] + 2 * between + 7 * 6 * mib / memory
    # DistSim: gpt-125m's parameters in 16 bits, once round a ring of 16 and once more.
    h, blocks = 768, 12
    parameters = blocks * (12 * h**2 + 13 * h) + (2 * 51200 + 1024) * h + 2 * h
    ring = 30 * ((12 * blocks + 4) * 20e-6 + 2 * parameters / 16 / nic)
    # Proteus: while a message is on the way a pass has 1 / 1.3 of its pace.
    forward, message = plan["stages"][0]["seconds"]["forward"], plan["reshardings"][0]["predicted"]["forward_s"]
    # Streaming: a chain over h hosts in chunks of c.
    size, hops, latency, rate = 4 * mib, 4, 20e-6, 1.25e9
    chunk = math.sqrt(size * latency * rate / (hops - 1))
    return {"TAPP": f"largest load {least_of_cuts(fixture('dnn-partitioning/chain.json')):.4f} contiguous (optimal",
            "Chimera": f"{100 * (4 - 2) / (3 * 4 / 2 + 4 - 2):.1f} % without a pass",
            "PipeMare": f"predicted step {16 * (0.1 + 0.2):.2f} s",
            "TensorOpt": f" {1e3 * replicated:.2f} ms    96.00 MiB\n {1e3 * cut:.2f} ms    88.00 MiB\n",
            "Proteus": f'"end_ns": {round(1e9 * (2 * forward + message * 0.3 / 1.3))}\n',
            "DistSim": f"resized from 2 x 4 to 4 x 4 1x16 - {1e3 * ring:.0f} ms ",
            "Streaming parallelism on heterogeneous many-core":
                f" {1e6 * (hops * latency + (size + (hops - 1) * chunk) / rate):.1f} "}  # fmt: skip


class PublishedSystems(unittest.TestCase):
    def test_all_are_told(self):
        names = " ".join(row[0] for row in rows())
        for system in SYSTEMS:
            self.assertIn(system.replace("_", " "), names)

    def test_rows_without_a_command_say_why(self):
        for name, what, command, says in rows():
            self.assertEqual(command == "–", says == "–", name)
            if command == "–":
                self.assertRegex(what, "^not built: |out of scope", name)

    def test_every_name_is_a_planner_or_told(self):
        for system in SYSTEMS + ["REINFORCE", "p2", "themis", "zero++", "2.5D"]:
            name = system.strip(",").replace("_", "-").lower()
            done = subprocess.run([PROGRAMS["autopar"], "shard", "mlp2", "--mesh", "1", "--like", name],
                                  capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
            self.assertNotRegex(done.stderr, "unknown planner", name)

    def test_galvatron_files_give_the_plan_again(self):
        model = "plan --like galvatron --model gpt-1.3b --cluster".split()
        with tempfile.TemporaryDirectory() as place:
            model.append(os.path.join(SOURCE, "tests/fixtures/profiles/lab-2x4.json"))
            said = [subprocess.run([PROGRAMS["autopar"], *model, *more.split()], cwd=place, capture_output=True, text=True,
                                   timeout=200, check=True).stdout for more in
                    ["--global-batch 64 --micro-batches 8 --export-strategy found.json", "--import-strategy found.json"]]  # fmt: skip
        self.assertEqual(*(re.search("digest .*", one).group() for one in said))

    def test_more_effort_is_never_worse(self):
        for hlo in "mlp2-b1024-h128", "transformer1", "transformer2":
            command = [PROGRAMS["autopar"], "shard", os.path.join(SOURCE, f"tests/fixtures/hlo/{hlo}.hlo"), "--mesh", "2x4"]
            said = [subprocess.run([*command, "--opt-level", str(level)], capture_output=True, text=True, timeout=200,
                                   check=True).stdout for level in range(5)]  # fmt: skip
            costs = [float(re.search(r"objective ([\d.e+]+)", one).group(1)) for one in said]
            self.assertGreater(costs[0], costs[4], hlo)
            self.assertLessEqual(max(costs[3:]), min(costs[:3]), hlo)
            self.assertLessEqual(costs[4], costs[3], hlo)
            self.assertIn("(proved optimal)", said[4], hlo)

    def test_jitter_is_as_wide_as_is_said(self):
        with tempfile.TemporaryDirectory() as place, concurrent.futures.ThreadPoolExecutor(2) as pool:
            make_plans(place)
            command = [PROGRAMS["autopar"], *"simulate equal.json --micro-batches 1 --jitter 0.5 --json --seed".split()]
            said = pool.map(lambda seed: subprocess.run([*command, str(seed)], cwd=place, capture_output=True, text=True, timeout=60,
                                                        check=True).stdout, range(60))  # fmt: skip
            steps = [1e-9 * json.loads(one)["step_ns"] for one in said]
        spread = 0.5 * math.sqrt(4 * (0.1**2 + 0.2**2) / 3)
        self.assertAlmostEqual(statistics.mean(steps), 1.2, delta=3 * spread / math.sqrt(60))
        self.assertAlmostEqual(statistics.stdev(steps), spread, delta=0.25 * spread)

    def run_row(self, place, row):
        name, _, command, says = row
        words = command.strip("`").split()
        done = subprocess.run([PROGRAMS[words[0]], *words[1:]], cwd=place, capture_output=True, text=True, timeout=600)
        if done.returncode != 0 or re.search(says.strip("`"), done.stdout, re.S) is None:
            return f"{name}: {command} ended with {done.returncode} and does not say {says}:\n{done.stdout[-2000:]}{done.stderr[-500:]}"
        return None

    def test_commands_say_what_the_page_says(self):
        with tempfile.TemporaryDirectory() as place:
            make_plans(place)
            with open(os.path.join(place, "plan.json"), encoding="utf-8") as file:
                figures = by_hand(json.load(file))
            wanted = {(row[2], row[3]): row for row in rows() if row[2] != "–"}
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                wrong = [said for said in pool.map(lambda row: self.run_row(place, row), wanted.values()) if said]
        says = {row[0]: row[3].strip("`") for row in rows()}
        for name, figure in figures.items():
            self.assertRegex(figure, says[name], name)
        self.assertGreater(len(wanted), 30)
        self.assertEqual(wrong, [], "\n".join(wrong))


if __name__ == "__main__":
    sys.exit(unittest.main())
