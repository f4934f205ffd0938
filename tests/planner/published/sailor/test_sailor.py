#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""autopar import sailor and autopar judge on random artifacts: plans say what sums in Python say, no row has a part in its
own prediction, and what is wrong is said in one sentence."""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from artifact import GPU, Artifact  # noqa: E402

AUTOPAR = os.environ["AUTOPAR"]


def run(*arguments):
    return subprocess.run([AUTOPAR, *arguments], capture_output=True, text=True, check=False, timeout=60)


def load(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return json.load(file)


class Sailor(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        self.folder, self.out = os.path.join(self.place.name, "in"), os.path.join(self.place.name, "out")

    def artifact(self, seed):
        made = Artifact(random.Random(seed), self.folder)
        made.save()
        return made

    def read(self):
        done = run("import", "sailor", self.folder, "-o", self.out)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def refused(self, words):
        done = run("import", "sailor", self.folder, "-o", self.out)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)

    def test_plans_are_the_sums(self):
        for seed in range(12):
            self.folder = os.path.join(self.place.name, f"in{seed}")
            self.out = os.path.join(self.place.name, f"out{seed}")
            made = self.artifact(seed)
            self.read()
            for row in made.rows:
                plan = load(self.out, row["name"] + ".json")
                self.assertEqual(plan["schedule"]["micro_batches"], row["count"])
                self.assertEqual(len(plan["stages"]), len(row["cuts"]) - 1)
                for index, stage in enumerate(plan["stages"]):
                    said = {**stage["seconds"], **stage["memory"]}
                    for key, value in made.stage(row, index).items():
                        self.assertAlmostEqual(said[key], value, delta=1e-9 * value, msg=f"{seed} {row} {key}")
                    self.assertEqual(said["sync"] > 0, row["replicas"] > 1)

    def test_a_row_has_no_part_in_its_prediction(self):
        made = self.artifact(3)
        self.read()
        before = json.loads(run("judge", os.path.join(self.out, "measured.json"), "--json").stdout)
        made.rows[1]["step"] *= 1.5
        made.rows[1]["memory"] *= 2
        made.save()
        self.read()
        after = json.loads(run("judge", os.path.join(self.out, "measured.json"), "--json").stdout)
        for key in ("step_s", "memory_bytes", "runtime"):
            self.assertEqual(before["rows"][1][key], after["rows"][1][key])
        self.assertNotEqual(before["rows"][0]["runtime"], after["rows"][0]["runtime"])

    def test_wrong_input(self):
        made = self.artifact(5)
        self.assertIn("a folder to write is needed", run("import", "sailor", self.folder).stderr)
        self.assertIn("'piper' has no folder of runs", run("import", "piper", self.folder, "-o", self.out).stderr)
        made.save(**{"clusters.json": {}})
        self.refused(f"clusters.json: {GPU} is missing")
        made.save(**{"network_coeffs.json": {"inter": {GPU: {"1": [[1, 2], 3]}}}})
        self.refused("has no fit")
        made.save(**{"profiles/small-rx-1.json": {}})
        self.refused("layer 0 with")
        plan = load(self.folder, "plans/some/R0.json")
        for change, words in (({"gbs": 0}, "samples"), ({"real": -1.0}, "a step of"), ({"mbs": "x"}, "integer")):
            made.save(**{"plans/some/R0.json": {**plan, **change}})
            self.refused(words)
        plan["pipeline_list"][0]["tmp_per_stage"][0][0][1] = 1
        made.save(**{"plans/some/R0.json": plan})
        self.refused("replicas of one kind")
        made.save()
        os.remove(os.path.join(self.folder, "training_small.json"))
        self.refused("no such files")

    def test_wrong_measurements(self):
        self.artifact(7)
        self.read()
        path = os.path.join(self.out, "measured.json")
        good = load(path)
        for change, words in ((("rows", []), "rows"), (("blocking", 1), "blocking is"),
                              (("rows", [{**good["rows"][0], "step_s": 0}]), "rows[0].step_s is 0; it must be positive"),
                              (("rows", [{**good["rows"][0], "plan": "none.json"}]), "none.json"),
                              (("rows", [{**good["rows"][0], "steps": 1}]), "unknown key 'rows[0].steps'")):
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**good, change[0]: change[1]}, file)
            for command in ("judge", "fit"):
                done = run(command, path)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
                self.assertIn(words, done.stderr)

    def test_fit_writes_a_profile(self):
        self.artifact(9)
        self.read()
        measured, profile = os.path.join(self.out, "measured.json"), os.path.join(self.out, "cluster.json")
        fitted = os.path.join(self.out, "fitted.json")
        given = load(profile) | {"runtime": {"bucket_bytes": 4096, "send_s": 0.25, "split_factor": 1.5, "weight_share": 0.25}}  # what it says itself stays
        with open(profile, "w", encoding="utf-8") as file:
            json.dump(given, file)
        done = run("fit", measured, "--cluster", profile, "-o", fitted, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        runtime = load(fitted)["runtime"]
        self.assertEqual([runtime.pop(key) for key in ("bucket_bytes", "send_s", "split_factor", "weight_share")], [4096, 0.25, 1.5, 0.25])
        self.assertEqual(runtime.keys(), json.loads(done.stdout).keys())
        for key, value in json.loads(done.stdout).items():
            self.assertAlmostEqual(runtime[key], value, delta=1e-9 * abs(value))
        self.assertIn("go together", run("fit", measured, "-o", fitted).stderr)


if __name__ == "__main__":
    unittest.main()
