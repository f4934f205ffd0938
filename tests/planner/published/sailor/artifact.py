# SPDX-License-Identifier: Apache-2.0
"""A small folder as Sailor's artifact has it, with random numbers, and what its plans must say."""
import json
import os

GPU, PER_HOST, SEQUENCE_FLOATS = "RX-1", 2, 64


class Artifact:
    def __init__(self, random, folder):
        self.folder = folder
        self.layers = random.randint(3, 7)
        self.profile = {str(m): {str(t): {str(l): [random.uniform(1e-3, 9e-3), random.uniform(1e-3, 9e-3), 1e-4 * t]
                                          for l in range(self.layers)} for t in (1, 2)} for m in (1, 2, 4)}
        self.model = {str(t): {str(l): {"params_floats": 100 * (l + 1), "params_bytes": 400 * (l + 1) // t,
                                        "act_mem_bytes": random.randint(1000, 9000),
                                        "act_output_floats": SEQUENCE_FLOATS, "act_output_bytes": 4 * SEQUENCE_FLOATS}
                               for l in range(self.layers)} for t in (1, 2)}
        self.rows = []
        for number in range(random.randint(3, 5)):
            stages = random.randint(1, min(3, self.layers))
            cuts = [0] + sorted(random.sample(range(1, self.layers), stages - 1)) + [self.layers]
            self.rows.append({"name": f"R{number}", "cuts": cuts, "replicas": random.choice((1, 2, 4)),
                              "samples": random.choice((1, 2, 4)), "count": random.randint(1, 6),
                              "step": random.uniform(0.5, 2), "memory": random.randint(10**6, 10**7)})

    def save(self, **changed):
        def put(path, document):
            os.makedirs(os.path.dirname(os.path.join(self.folder, path)), exist_ok=True)
            with open(os.path.join(self.folder, path), "w", encoding="utf-8") as file:
                json.dump(changed.get(path, document), file)

        fit = [[-0.1, 2.0, 8.0], 2e10]
        put("network_coeffs.json", {"inter": {GPU: {"1": fit, "2": [[-0.2, 4.0, 16.0], 4e10]}},
                                    "intra": {GPU: {"2": fit}}})
        put("clusters.json", {GPU: {"gpus_per_node": PER_HOST, "mem_per_gpu": 16e9}})
        put("training_small.json", {"model": "small"})
        put("model_info.json", {"small": self.model})
        put("profiles/small-rx-1.json", self.profile)
        for row in self.rows:
            replica = [[[GPU, PER_HOST, "zone"]], PER_HOST]
            stages = len(row["cuts"]) - 1
            put(f"plans/some/{row['name']}.json", {
                "pipeline_list": [{"num_stages": stages,
                                   "layers_per_stage": [list(range(a, b)) for a, b in zip(row["cuts"], row["cuts"][1:])],
                                   "tmp_per_stage": [[replica] * row["replicas"]] * stages,
                                   "dp": [row["replicas"]] * stages}],
                "mbs": row["samples"], "gbs": row["samples"] * row["replicas"] * row["count"], "real": row["step"],
                "red_grads": 0.01, "max_mem": row["memory"]})

    def seconds(self, samples, layer, what):
        """The least of all that has as many samples or more, in as many parts or fewer: 2 is the most there is."""
        return min(degrees[t][str(layer)][what] for m, degrees in self.profile.items() if int(m) >= samples
                   for t in degrees)

    def stage(self, row, index):
        layers = range(row["cuts"][index], row["cuts"][index + 1])
        kept = [row["samples"] * self.model["2"][str(l)]["act_mem_bytes"] for l in layers]
        stages = len(row["cuts"]) - 1
        return {"forward": sum(self.seconds(row["samples"], l, 0) for l in layers),
                "backward": sum(self.seconds(row["samples"], l, 1) for l in layers), "update": 1e-4,
                "state_bytes": 4 * sum(self.model["2"][str(l)]["params_bytes"] for l in layers),
                "activation_bytes": sum(kept), "work_bytes": max(kept),
                "in_flight": min(row["count"], stages - index)}
