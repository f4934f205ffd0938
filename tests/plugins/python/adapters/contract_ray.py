# SPDX-License-Identifier: Apache-2.0
"""Ray's registry of tensor transports, as small as it can be: not Ray, but the classes, methods and signatures of its
version 2.60, for machines without it; and how Ray runs a transfer between two actors, which here are processes that a
Crew calls. `install()` puts it where Ray has it; where the real Ray is installed the test compares the two."""

import dataclasses
import inspect
import sys
import types
from abc import ABC, abstractmethod
from typing import Any


@dataclasses.dataclass
class CommunicatorMetadata:
    pass


@dataclasses.dataclass
class TensorTransportMetadata:
    tensor_meta: list
    tensor_device: Any = None


class TensorTransportManager(ABC):
    @abstractmethod
    def tensor_transport_backend(self): ...

    @staticmethod
    @abstractmethod
    def is_one_sided(): ...

    @staticmethod
    @abstractmethod
    def can_abort_transport(): ...

    @abstractmethod
    def actor_has_tensor_transport(self, actor): ...

    @abstractmethod
    def extract_tensor_transport_metadata(self, obj_id, rdt_object): ...

    @abstractmethod
    def get_communicator_metadata(self, src_actor, dst_actor, backend=None): ...

    @abstractmethod
    def recv_multiple_tensors(self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None): ...

    @abstractmethod
    def send_multiple_tensors(self, tensors, tensor_transport_metadata, communicator_metadata): ...

    @abstractmethod
    def garbage_collect(self, obj_id, tensor_transport_meta, tensors): ...

    @abstractmethod
    def abort_transport(self, obj_id, communicator_metadata): ...


transport_manager_info = {}


def register_tensor_transport(transport_name, devices, transport_manager_class, data_type):
    assert transport_name not in transport_manager_info and issubclass(transport_manager_class, TensorTransportManager)
    transport_manager_info[transport_name] = (transport_manager_class, devices, data_type)


class Actor:
    """A handle, with what the adapter uses of one."""

    def __init__(self, crew, number):
        self._actor_id = bytes([number])
        self._crew, self._number = crew, number
        self.__ray_call__ = types.SimpleNamespace(remote=self._call)

    def _call(self, function, *arguments):
        self._crew.send([self._number], "call", [(function, arguments)])
        return self._number


def install(get):
    """`get(numbers)` collects what actors have answered."""
    ray = types.ModuleType("ray")
    ray.get = lambda calls, timeout=None: get(calls) if isinstance(calls, list) else get([calls])[0]
    ray.util = types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    modules = {name: types.ModuleType(name) for name in ("ray.experimental", "ray.experimental.rdt",
               "ray.experimental.rdt.util", "ray.experimental.rdt.tensor_transport_manager")}  # fmt: skip
    modules["ray.experimental"].register_tensor_transport = register_tensor_transport
    modules["ray.experimental.rdt.util"].transport_manager_info = transport_manager_info
    for name in ("util", "tensor_transport_manager"):
        setattr(modules["ray.experimental.rdt"], name, modules["ray.experimental.rdt." + name])
    for key, value in globals().items():
        if inspect.isclass(value):
            setattr(modules["ray.experimental.rdt.tensor_transport_manager"], key, value)
    sys.modules.update(modules, ray=ray)


@dataclasses.dataclass
class Transfer:
    """One object on its way, as the process that owns it has it."""

    manager: Any
    crew: Any
    src: Actor
    dst: Actor
    obj_id: str

    def begin(self, buffers=False):
        meta = self.crew.call_some([self.src._number], "extract", [self.obj_id])[0]
        self.about = self.manager.get_communicator_metadata(self.src, self.dst, "CROSSMESH")
        self.crew.send([self.src._number], "send", [(self.obj_id, meta, self.about)])
        self.crew.send([self.dst._number], "receive", [(self.obj_id, meta, self.about, buffers)])

    def end(self):
        return self.crew.collect([self.src._number, self.dst._number])
