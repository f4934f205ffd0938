#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""autopar plan --objective cost against brute force: every set of hosts, each as a cluster of its own that this test writes,
is planned for its time; the cheapest is what --objective cost finds, with and without a lowest throughput."""
import itertools
import json
import os
import random
import re
import subprocess
import tempfile
import unittest

AUTOPAR, SOURCE = os.environ["AUTOPAR"], os.environ["SOURCE_DIR"]
MODEL = ("--model", "mlp4", "--global-batch", "64", "--micro-batches", "1,4")


def device(random_, kind):
    return {"flop_per_s": (1e9, 2.5e9, 4e9)[kind] * random_.uniform(0.8, 1.2), "memory_bytes": 16e9,
            "memory_bytes_per_s": 8e8, "price_per_hour": random_.uniform(0.5, 4)}


def cluster(name, devices, per_host):
    latency, rate = 1e-6, 5e10
    curve = [[8, latency], [1 << 20, latency + 2**20 / rate], [1 << 26, latency + 2**26 / rate]]
    return {"version": 2, "name": name, "provenance": "assumed, for a test", "hosts": len(devices),
            "devices_per_host": per_host, "device": {**devices[0], "hosts": devices}, "nic": {"bytes_per_s": 5e10},
            "curves": {"self": curve, "intra_host": curve, "inter_host": curve}}


def plan(path, *more):
    done = subprocess.run([AUTOPAR, "plan", "--cluster", path, *MODEL, *more], capture_output=True, text=True,
                          check=False, timeout=100)
    return done


class Objective(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)

    def save(self, name, document):
        path = os.path.join(self.place.name, name + ".json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
        return path

    def brute_force(self, devices, per_host):
        """(cost, samples a second) of the fastest plan of every set of hosts."""
        found = []
        for count in range(1, len(devices) + 1):
            for hosts in itertools.combinations(range(len(devices)), count):
                for used in [d for d in range(1, per_host + 1) if per_host % d == 0] if count == 1 else [per_host]:
                    part = [devices[h] for h in hosts]
                    path = self.save("part", cluster("part", part, used))
                    done = plan(path, "--all-devices", "--json")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    step = json.loads(done.stdout)["predicted"]["step_s"]
                    found.append((used * sum(d["price_per_hour"] for d in part) * step / 3600, 64 / step))
        return found

    def test_brute_force(self):
        for seed, per_host in ((1, 2), (2, 1), (3, 2)):
            random_ = random.Random(seed)
            kinds = [device(random_, kind) for kind in range(3)]
            devices = [kinds[random_.randrange(3)] for _ in range(3)]
            whole = self.save("whole", cluster("whole", devices, per_host))
            found = self.brute_force(devices, per_host)
            throughputs = sorted(t for _, t in found)
            for least in (0, throughputs[len(throughputs) // 2] * 0.999, throughputs[-1] * 0.999):
                done = plan(whole, "--objective", "cost", "--min-throughput", str(least))
                self.assertEqual(done.returncode, 0, done.stderr)
                cost = float(re.search(r"a step costs ([^:]+):", done.stdout).group(1))
                best = min(c for c, t in found if t >= least)
                self.assertAlmostEqual(cost, best, delta=1e-5 * best, msg=f"seed {seed}, at least {least}")
            for objective in ("cost", "time"):
                done = plan(whole, "--objective", objective, "--min-throughput", str(throughputs[-1] * 2))
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
                self.assertIn("no plan is fast enough", done.stderr)

    def test_wrong_use(self):
        bare = device(random.Random(4), 0)
        del bare["price_per_hour"]
        path = self.save("bare", cluster("bare", [bare] * 2, 1))
        self.assertIn("no price_per_hour of host 0", plan(path, "--objective", "cost").stderr)
        self.assertIn("--objective has no meaning with --pareto", plan(path, "--objective", "cost", "--pareto").stderr)
        bare["price_per_hour"] = -1
        path = self.save("bare", cluster("bare", [bare] * 2, 1))
        self.assertIn("price_per_hour is -1; it must be positive", plan(path).stderr)


if __name__ == "__main__":
    unittest.main()
