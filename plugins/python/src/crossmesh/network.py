# SPDX-License-Identifier: Apache-2.0
"""What plans know of the network: hosts, rates and latencies."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence

from . import _native
from ._native import lib
from .errors import InputError

__all__ = ["Network"]


class Network:
    """Which rank is on which host, and how fast hosts and devices are; bytes per second and seconds.

    A rail is the NICs of some ranks of a host, and no others use it; without rails a host's NICs are one pipe.

    The rates only decide among plans, all of which are right. The default is a NIC of 10 Gbit/s a host.
    """

    def __init__(
        self,
        host_of_rank: Sequence[int],
        *,
        nic_bandwidth: float = 1.25e9,
        nic_latency: float = 20e-6,
        host_bandwidth: float = 10e9,
        host_latency: float = 1e-6,
        egress: Sequence[float] | None = None,
        ingress: Sequence[float] | None = None,
        rack_of_host: Sequence[int] | None = None,
        uplink_bandwidth: float = 0.0,
        rail_of_rank: Sequence[int] | None = None,
        rail_egress: Sequence[float] | None = None,
        rail_ingress: Sequence[float] | None = None,
    ) -> None:
        hosts = max(host_of_rank, default=-1) + 1
        rails = hosts if rail_of_rank is None else max(rail_of_rank, default=-1) + 1
        lengths = {
            "egress": (egress, hosts, "hosts"),
            "ingress": (ingress, hosts, "hosts"),
            "rack_of_host": (rack_of_host, hosts, "hosts"),
            "rail_of_rank": (rail_of_rank, len(host_of_rank), "ranks"),
            "rail_egress": (rail_egress, rails, "rails"),
            "rail_ingress": (rail_ingress, rails, "rails"),
        }
        for name, (values, wanted, what) in lengths.items():
            if values is not None and len(values) != wanted:
                raise InputError(f"{name} has {len(values)} entries for {wanted} {what}")
        params = _native.NetworkParams(
            struct_size=ctypes.sizeof(_native.NetworkParams),
            ranks=len(host_of_rank),
            host_of_rank=_native.ints(host_of_rank),
            nic_bandwidth=nic_bandwidth,
            nic_latency=nic_latency,
            host_bandwidth=host_bandwidth,
            host_latency=host_latency,
            egress=_native.doubles(egress),
            ingress=_native.doubles(ingress),
            rack_of_host=None if rack_of_host is None else _native.ints(rack_of_host),
            uplink_bandwidth=uplink_bandwidth,
            rail_of_rank=None if rail_of_rank is None else _native.ints(rail_of_rank),
            rail_egress=_native.doubles(rail_egress),
            rail_ingress=_native.doubles(rail_ingress),
        )
        handle = ctypes.c_void_p()
        lib.xm_network_create(params, handle)
        self._adopt(handle)

    @classmethod
    def from_profile(cls, path: str | os.PathLike[str], host_of_rank: Sequence[int]) -> Network:
        """Rates from a cluster profile that `autopar probe` has measured."""
        profile, handle = ctypes.c_void_p(), ctypes.c_void_p()
        lib.xm_cluster_profile_load(os.fsencode(path), profile)
        try:
            lib.xm_network_from_profile(profile, len(host_of_rank), _native.ints(host_of_rank), handle)
        finally:
            lib.xm_cluster_profile_destroy(profile)
        network = cls.__new__(cls)
        network._adopt(handle)
        return network

    @classmethod
    def _from_worker(cls, worker: int) -> Network:
        """As a job's worker knows it."""
        handle = ctypes.c_void_p()
        lib.xm_network_from_worker(worker, handle)
        network = cls.__new__(cls)
        network._adopt(handle)
        return network

    def _adopt(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle.value
        weakref.finalize(self, lib.xm_network_destroy, self._handle).atexit = False

    @property
    def ranks(self) -> int:
        count: int = lib.xm_network_ranks(self._handle)
        return count

    @property
    def hosts(self) -> int:
        count: int = lib.xm_network_hosts(self._handle)
        return count

    def host_of(self, rank: int) -> int:
        if not 0 <= rank < self.ranks:
            raise InputError(f"rank {rank} in a network of {self.ranks} ranks")
        host: int = lib.xm_network_host_of(self._handle, rank)
        return host

    def __repr__(self) -> str:
        return f"<Network of {self.ranks} ranks on {self.hosts} hosts>"
