# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's backend "crossmesh": point-to-point messages of libcrossmesh, and what can be made of them.

    >>> import crossmesh.torch.backend
    >>> torch.distributed.init_process_group("crossmesh")

It has send, recv, isend, irecv, batch_isend_irecv, broadcast, all_gather, all_gather_into_tensor, gather, scatter,
all_to_all, all_to_all_single and barrier, for tensors of every dtype in host memory, and so what torch makes of them:
objects, and DTensors that are laid out anew. There are no reductions. Operations go on while Python computes, any
number at once; a rank that dies ends them with PeerDiedError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _native
from .._native import IN_PROGRESS, lib, raw
from ..errors import AbortedError, CrossmeshError, InputError, from_status
from ..job import Job
from ..reshard import Request
from ._store import StoreAllgather

__all__ = ["ProcessGroupCrossmesh"]

# Tag of a message of the group, 40 bits: tag and count for messages of the user, or COLLECTIVE, the count
# of the collective and the step in it.
TAG_SHIFT, COUNT_MASK = 24, (1 << 24) - 1
COLLECTIVE, SEQUENCE_SHIFT, SEQUENCE_MASK, STEP_MASK = 0xFFFF, 12, 0xFFF, 0xFFF

# A script posts messages and yields them; it goes on when all of them have ended well.
Script = Iterator[list[int]]


class Flow(Request):
    """A script under way, among the requests of its job."""

    def __init__(self, job: Job, script: Script, deadline: int) -> None:
        super().__init__(job, None)
        self._script, self._messages, self._deadline = script, list[int](), deadline

    def _step(self, until: int | None = None) -> bool:
        if self.done:
            return False
        try:
            while self._arrived():
                self._messages = next(self._script)
        except StopIteration:
            self._finish(None)
            return True
        except CrossmeshError as error:
            self._finish(error)
            return True
        except Exception as error:
            # The progress thread may be here: whoever waits is told.
            self._finish(CrossmeshError(f"{type(error).__name__}: {error}"))
            return True
        return self._sleep(until)

    def _arrived(self) -> bool:
        while self._messages:
            status = lib.xm_message_test(self._messages[-1])
            if status == IN_PROGRESS:
                return False
            raw.xm_message_destroy(self._messages.pop())
        return True

    def _sleep(self, until: int | None) -> bool:
        """Progress of the worker, where the job leaves that to its only request, and the deadline."""
        job = self._job
        status = 0
        if until is not None:
            status = raw.xm_worker_wait(job._worker, min(until, self._deadline))
        if status < 0 and status != _native.ERR_TIMEOUT:
            self._finish(from_status(status, _native.last_error()))
        elif job._now() >= self._deadline:
            sentence = f"rank {job.rank}: an operation has not ended within {job.timeout:g} s"
            self._finish(from_status(_native.ERR_TIMEOUT, sentence))
        return self.done

    def _finish(self, error: CrossmeshError | None) -> None:
        while self._messages:
            raw.xm_message_destroy(self._messages.pop())
        super()._finish(error)

    def _drop(self) -> None:
        self._finish(AbortedError("the process group was shut down"))


class _Work(dist.Work):  # type: ignore[misc]
    """What torch waits for."""

    def __init__(self, *flows: Flow) -> None:
        super().__init__()
        self._flows = flows

    def wait(self, timeout: timedelta | None = None) -> bool:
        for flow in self._flows:
            flow.wait(timeout.total_seconds() if timeout else None)
        return True

    def is_completed(self) -> bool:
        return all(flow.done for flow in self._flows)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> CrossmeshError | None:
        return next((flow._error for flow in self._flows if flow._error is not None), None)


class _Memory:
    """A tensor's bytes; those of one that is not contiguous, in a copy."""

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu":
            raise InputError(f"backend crossmesh moves tensors in host memory, not on {tensor.device}")
        tensor = tensor.detach()
        plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        self.tensor = tensor
        self.packed = tensor if plain else tensor.resolve_conj().resolve_neg().contiguous()
        self.address = self.packed.data_ptr()
        self.size = self.packed.numel() * self.packed.element_size()

    def unpack(self) -> None:
        if self.packed is not self.tensor:
            self.tensor.copy_(self.packed)


_NO_REDUCTIONS = "it moves bytes and adds nothing up; dist.new_group(backend='gloo') has reductions for the same ranks"


def _refusal(name: str, why: str) -> Callable[..., _Work]:
    """An operation that torch may ask for by that name, and that is not there."""

    def refuse(_group: Any, *_: Any, **__: Any) -> _Work:
        raise InputError(f"backend crossmesh has no {name}: {why}")

    return refuse


def _parts(what: str, tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[_Memory]:
    """A tensor's rows for each rank: so many, or equally many."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not sizes and rows % ranks == 0:
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise InputError(f"all_to_all_single on {ranks} ranks with an {what} of {rows} rows in parts of {list(sizes)}")
    return [_Memory(part) for part in tensor.split(list(sizes))]


class ProcessGroupCrossmesh(dist.ProcessGroup):  # type: ignore[misc]
    """A group of its own: other groups of the same ranks do not see its messages."""

    def __init__(self, where: Job | Any, rank: int, size: int, timeout: timedelta, name: str) -> None:
        """At a Store, or with a job that has met elsewhere."""
        super().__init__(rank, size)
        self._name = name
        if isinstance(where, Job):
            self._job = where
        else:
            table = StoreAllgather(dist.PrefixStore("crossmesh-backend", where), rank, size)
            self._job = Job.from_oob(table, timeout=timeout.total_seconds(), progress_thread=True)
        self._counts: dict[tuple[str, int, int], int] = {}
        self._collectives = 0

    # Messages --------------------------------------------------------------------------------------

    def _send(self, peer: int, number: int, address: int, size: int) -> list[int]:
        return self._post(lib.xm_message_send, peer, number, address, size)

    def _receive(self, peer: int, number: int, address: int, size: int) -> list[int]:
        return self._post(lib.xm_message_receive, peer, number, address, size)

    def _post(self, call: Any, peer: int, number: int, address: int, size: int) -> list[int]:
        """One message, or none where there is nothing to say, which both ends know."""
        if size == 0:
            return []
        message = _native.handle()
        call(self._job._worker, peer, number, address, size, message)
        return [message.value or 0]

    def _number(self, way: str, peer: int, tag: int) -> int:
        """Messages between two ranks with the same tag match in the order of their posts."""
        if not 0 <= tag < COLLECTIVE:
            raise InputError(f"tag {tag}: backend crossmesh has tags from 0 to {COLLECTIVE - 1}")
        if not 0 <= peer < self.size() or peer == self.rank():
            raise InputError(f"rank {self.rank()} cannot exchange a message with rank {peer} of {self.size()}")
        count = self._counts.get((way, peer, tag), 0)
        self._counts[way, peer, tag] = count + 1
        return tag << TAG_SHIFT | count & COUNT_MASK

    def _begin(self, script: Script) -> _Work:
        job = self._job
        with job._slot():
            flow = Flow(job, script, job._now() + int(job.timeout * 1e9))
            job._requests.append(flow)
            flow._step()
            with job._posted:
                job._posted.notify_all()
        return _Work(flow)

    def _next_collective(self) -> int:
        self._collectives += 1
        return COLLECTIVE << TAG_SHIFT | (self._collectives & SEQUENCE_MASK) << SEQUENCE_SHIFT

    # What torch calls ------------------------------------------------------------------------------

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int) -> _Work:
        memory, number = _Memory(tensors[0]), self._number("send", dst, tag)

        def script() -> Script:
            yield self._send(dst, number, memory.address, memory.size)

        return self._begin(script())

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int) -> _Work:
        memory, number = _Memory(tensors[0]), self._number("receive", src, tag)

        def script() -> Script:
            yield self._receive(src, number, memory.address, memory.size)
            memory.unpack()

        return self._begin(script())

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> _Work:
        """Along a binomial tree."""
        memory, root, number = _Memory(tensors[0]), opts.rootRank, self._next_collective()

        def script() -> Script:
            size, place, bit = self.size(), (self.rank() - root) % self.size(), 1
            while bit < size and not place & bit:
                bit <<= 1
            if place > 0:
                yield self._receive((place - bit + root) % size, number, memory.address, memory.size)
                memory.unpack()
            below: list[int] = []
            while bit > 1:
                bit >>= 1
                if place + bit < size:
                    below += self._send((place + bit + root) % size, number, memory.address, memory.size)
            yield below

        return self._begin(script())

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> _Work:
        return self._gather([_Memory(output) for output in outputs[0]], inputs[0])

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> _Work:
        if output.numel() != own.numel() * self.size():
            raise InputError(
                f"all_gather_into_tensor of {own.numel()} elements on {self.size()} ranks into {output.numel()}"
            )
        whole = _Memory(output)
        blocks = whole.packed.reshape(-1).chunk(self.size()) if own.numel() else [own] * self.size()
        return self._gather([_Memory(block) for block in blocks], own, whole)

    all_gather_single = _allgather_base  # its name since PyTorch 2.13

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> _Work:
        """Several at once; DTensor gathers by this."""
        works = [self._allgather_base(output, own) for output, own in zip(outputs, inputs)]
        return _Work(*(flow for work in works for flow in work._flows))

    all_gather_single_coalesced = allgather_into_tensor_coalesced  # likewise

    def _gather(self, blocks: list[_Memory], own: torch.Tensor, whole: _Memory | None = None) -> _Work:
        """Around a ring."""
        size, rank, number = self.size(), self.rank(), self._next_collective()
        if len(blocks) != size or blocks[rank].tensor.numel() != own.numel() or blocks[rank].tensor.dtype != own.dtype:
            raise InputError(f"all_gather on {size} ranks needs as many tensors, of which one is like the input")
        blocks[rank].packed.reshape(-1).copy_(own.detach().reshape(-1))

        def script() -> Script:
            for step in range(size - 1):
                here, there = blocks[(rank - step) % size], blocks[(rank - step - 1) % size]
                messages = self._send((rank + 1) % size, number | step & STEP_MASK, here.address, here.size)
                messages += self._receive((rank - 1) % size, number | step & STEP_MASK, there.address, there.size)
                yield messages
            for block in [*blocks, *([whole] if whole else [])]:
                block.unpack()

        return self._begin(script())

    def barrier(self, opts: Any = None) -> _Work:
        """By dissemination: after step k everybody has heard of 2^(k+1) ranks."""
        size, rank, number = self.size(), self.rank(), self._next_collective()
        token = torch.zeros(2, dtype=torch.uint8)

        def script() -> Script:
            step = 0
            while 1 << step < size:
                messages = self._send((rank + (1 << step)) % size, number | step, token.data_ptr(), 1)
                messages += self._receive((rank - (1 << step)) % size, number | step, token.data_ptr() + 1, 1)
                yield messages
                step += 1

        return self._begin(script())

    def _exchange(self, out: Mapping[int, _Memory], into: Mapping[int, _Memory]) -> _Work:
        """A message to each rank of `out`, one from each rank of `into`, all at once."""
        rank, number = self.rank(), self._next_collective()
        if rank in into:
            into[rank].packed.reshape(-1).copy_(out[rank].packed.reshape(-1))

        def script() -> Script:
            messages: list[int] = []
            for peer, memory in into.items():
                if peer != rank:
                    messages += self._receive(peer, number, memory.address, memory.size)
            for peer, memory in out.items():
                if peer != rank:
                    messages += self._send(peer, number, memory.address, memory.size)
            yield messages
            for memory in into.values():
                memory.unpack()

        return self._begin(script())

    def gather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> _Work:
        root, own = opts.rootRank, _Memory(inputs[0])
        if root != self.rank():
            return self._exchange({root: own}, {})
        blocks = [_Memory(output) for output in outputs[0]]
        self._check_alike("gather", blocks, own)
        return self._exchange({root: own}, dict(enumerate(blocks)))

    def scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> _Work:
        root, own = opts.rootRank, _Memory(outputs[0])
        if root != self.rank():
            return self._exchange({}, {root: own})
        blocks = [_Memory(block) for block in inputs[0]]
        self._check_alike("scatter", blocks, own)
        return self._exchange(dict(enumerate(blocks)), {root: own})

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> _Work:
        size, rank = self.size(), self.rank()
        if len(outputs) != size or len(inputs) != size or outputs[rank].numel() != inputs[rank].numel():
            raise InputError(f"all_to_all on {size} ranks needs as many tensors, equally large for a rank's own")
        return self._exchange(
            {peer: _Memory(tensor) for peer, tensor in enumerate(inputs)},
            {peer: _Memory(tensor) for peer, tensor in enumerate(outputs)},
        )

    def alltoall_base(
        self,
        output: torch.Tensor,
        own: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> _Work:
        size, rank = self.size(), self.rank()
        into, out = _parts("output", output, output_sizes, size), _parts("input", own, input_sizes, size)
        if into[rank].size != out[rank].size:
            raise InputError(
                f"all_to_all_single: rank {rank} has {out[rank].size} bytes for itself, and room for {into[rank].size}"
            )
        return self._exchange(dict(enumerate(out)), dict(enumerate(into)))

    all_to_all_single = alltoall_base  # likewise

    def _check_alike(self, name: str, blocks: Sequence[_Memory], own: _Memory) -> None:
        size = self.size()
        if len(blocks) != size or any(block.size != own.size for block in blocks):
            raise InputError(f"{name} on {size} ranks needs as many tensors, each as large as a rank's own")

    recv_anysource = _refusal("receive from any rank", "name the rank")
    allreduce = _refusal("all_reduce", _NO_REDUCTIONS)
    allreduce_coalesced = _refusal("all_reduce_coalesced", _NO_REDUCTIONS)
    reduce = _refusal("reduce", _NO_REDUCTIONS)
    reduce_scatter = _refusal("reduce_scatter", _NO_REDUCTIONS)
    reduce_scatter_single = _refusal("reduce_scatter_tensor", _NO_REDUCTIONS)
    _reduce_scatter_base = reduce_scatter_single  # its name before PyTorch 2.13
    reduce_scatter_single_coalesced = _refusal("reduce_scatter_tensor_coalesced", _NO_REDUCTIONS)
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @property
    def group_name(self) -> str:
        return self._name

    def getBackendName(self) -> str:  # noqa: N802
        return "crossmesh"

    def shutdown(self) -> None:
        self._job.close()

    def abort(self) -> None:
        if not self._job.closed:
            self._job.close("the process group was aborted")


def _create(about: Any, _options: Any) -> ProcessGroupCrossmesh:
    return ProcessGroupCrossmesh(about.store, about.group_rank, about.group_size, about.timeout, about.group_id)


if "CROSSMESH" not in dist.Backend._plugins:
    dist.Backend.register_backend("crossmesh", _create, extended_api=True, devices=["cpu"])
