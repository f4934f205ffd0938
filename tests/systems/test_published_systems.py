# SPDX-License-Identifier: Apache-2.0
"""Every command of docs/published-systems.md runs and says what the page says that it does; all systems are on the page.

Environment: SOURCE_DIR, AUTOPAR, RESHARD_BENCH.
"""

import concurrent.futures
import os
import re
import shutil
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

    def run_row(self, place, row):
        name, _, command, says = row
        words = command.strip("`").split()
        done = subprocess.run([PROGRAMS[words[0]], *words[1:]], cwd=place, capture_output=True, text=True, timeout=600)
        if done.returncode != 0 or re.search(says.strip("`"), done.stdout, re.S) is None:
            return f"{name}: {command} ended with {done.returncode} and does not say {says}:\n{done.stdout[-2000:]}{done.stderr[-500:]}"
        return None

    def test_commands_say_what_the_page_says(self):
        with tempfile.TemporaryDirectory() as place:
            shutil.copy(os.path.join(SOURCE, "tests/fixtures/profiles/lab-2x4.json"), os.path.join(place, "cluster.json"))
            os.symlink(os.path.join(SOURCE, "tests/fixtures"), os.path.join(place, "fixtures"))
            plan = "plan --model gpt-1.3b --cluster cluster.json --global-batch 64 --micro-batches 16 --stages 4 --schedule 1f1b -o plan.json"
            subprocess.run([PROGRAMS["autopar"], *plan.split()], cwd=place, check=True, capture_output=True, timeout=600)
            wanted = {(row[2], row[3]): row for row in rows() if row[2] != "–"}
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                wrong = [said for said in pool.map(lambda row: self.run_row(place, row), wanted.values()) if said]
        self.assertGreater(len(wanted), 30)
        self.assertEqual(wrong, [], "\n".join(wrong))


if __name__ == "__main__":
    sys.exit(unittest.main())
