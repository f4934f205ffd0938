#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every GPU of two eight-GPU boards gets the RDMA NIC that its own walk of the XML finds nearest, whichever cables' speeds are
told, and no function of the NVSwitch board is ever chosen."""
import os
import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree

FIXTURES = os.path.join(os.environ["SOURCE_DIR"], "tests/fixtures/hwloc")
GPU, NETWORK, RDMA = "0302", "2", "3"


def walk(element, above, found):
    """Lists (PCI device, its ancestors); a device knows its place in the tree by nothing else."""
    for child in element.findall("object"):
        if child.get("type") == "PCIDev":
            found.append((child, above))
        walk(child, above + [child], found)
    return found


def rdma_of(device):
    return next((one.get("name") for one in device.findall("object") if one.get("osdev_type") == RDMA), None)


def is_narrow(device):
    return float(device.get("pci_link_speed")) < 8


def common(one, other):
    return sum(a is b for a, b in zip(one, other))


def nearest(tree):
    """For each GPU the RDMA NICs in wide slots that share most of its ancestors."""
    devices = walk(tree.getroot(), [], [])
    nics = [(rdma_of(device), above) for device, above in devices if rdma_of(device) and not is_narrow(device)]
    gpus = [above for device, above in devices if device.get("pci_type").startswith(GPU)]
    best = [max(common(gpu, above) for _, above in nics) for gpu in gpus]
    return [{name for name, above in nics if common(gpu, above) == most} for gpu, most in zip(gpus, best)]


def tell(tree, speeds):
    """Writes what is told of cables: `speeds` gives Mbit/s for wide and narrow RDMA NICs and for plain Ethernet, None: untold."""
    for device, _ in walk(tree.getroot(), [], []):
        systems = [one for one in device.findall("object") if one.get("osdev_type") in (NETWORK, RDMA)]
        kind = "ethernet" if rdma_of(device) is None else "narrow" if is_narrow(device) else "wide"
        for one in systems:
            for info in [info for info in one.findall("info") if info.get("name") == "CrossmeshLinkMbps"]:
                one.remove(info)
            if speeds.get(kind):
                ElementTree.SubElement(one, "info", name="CrossmeshLinkMbps", value=str(speeds[kind]))


def chosen(path):
    text = subprocess.run([os.environ["RESHARD_BENCH"], "--show-topology", "--topology", path], check=True, text=True,
                          stdout=subprocess.PIPE, env=dict(os.environ, XM_NICS="")).stdout
    return re.findall(r"^  gpu\d+ +-> (\S+):1 ", text, re.MULTILINE), text


TOLD = [{}, {"wide": 400000}, {"narrow": 400000}, {"wide": 400000, "narrow": 400000}, {"narrow": 800000}, {"ethernet": 1000},
        {"ethernet": 100000}, {"narrow": 400000, "ethernet": 25000}, {"wide": 400000, "narrow": 400000, "ethernet": 25000}]

with tempfile.TemporaryDirectory() as folder:
    for machine in ("p6-b200.48xl", "own/hgx-8gpu-board"):
        for number, speeds in enumerate(TOLD):
            tree = ElementTree.parse(os.path.join(FIXTURES, machine + ".xml"))
            expected = nearest(tree)
            tell(tree, speeds)
            path = os.path.join(folder, f"{number}.xml")
            tree.write(path)
            got, text = chosen(path)
            assert len(expected) == 8 and len(got) == 8, text
            assert all(nic in near for nic, near in zip(got, expected)), (machine, speeds, text)
            assert len(set(got)) == 8, (machine, speeds, text)
    print(f"2 boards, {len(TOLD)} ways to tell speeds: 8 of 8 GPUs have a nearest NIC of their own")
