# SPDX-License-Identifier: Apache-2.0
"""The examples of two programs that exchange weights: as they stand, with their commands at ports of this test's."""

import os
import subprocess
import sys
import unittest

import ranks

EXAMPLES = os.path.join(os.environ["SOURCE_DIR"], "examples")


class Programs(unittest.TestCase):
    def run_all(self, commands):
        started = [
            subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for command in commands
        ]
        outputs = [process.communicate(timeout=2 * ranks.TIMEOUT)[0] for process in started]
        for process, output in zip(started, outputs):
            self.assertEqual(process.returncode, 0, "\n".join(outputs))
        return "".join(outputs)

    def served(self, output, servers):
        for rank in range(servers):
            for step in range(1, 4):
                self.assertIn(f"serve rank {rank}, step {step}: [[{10 * step}.0], [{10 * step + 1}.0]]", output)


class Torch(Programs):
    def test_torchrun_and_torchrun(self):
        os.environ["PET_LOCAL_ADDR"] = "127.0.0.1"  # where this machine's name is nobody's address
        program, address = os.path.join(EXAMPLES, "weights_torch.py"), f"127.0.0.1:{ranks.free_port()}"
        commands = [
            ["-m", "torch.distributed.run", "--master-port", str(ranks.free_port()), "--nproc-per-node", str(size),
             program, role, address]
            for role, size in (("train", 2), ("serve", 3))
        ]  # fmt: skip
        self.served(self.run_all(commands), 3)


class Jax(Programs):
    def test_jax_and_torch(self):
        os.environ["JAX_PLATFORMS"] = "cpu"
        program = os.path.join(EXAMPLES, "weights_jax.py")
        address, other = (f"127.0.0.1:{ranks.free_port()}" for _ in range(2))
        commands = [[program, role, str(rank), address, other] for role in ("train", "serve") for rank in range(2)]
        self.served(self.run_all(commands), 2)


if __name__ == "__main__":
    sys.exit(unittest.main())
