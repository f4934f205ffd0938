# SPDX-License-Identifier: Apache-2.0
"""The C interface for ctypes. scripts/generate-python-abi makes this file of the public headers: change those."""
# ruff: noqa

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int, c_int8, c_int32, c_int64
from ctypes import c_size_t, c_uint, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any


class Base(Structure):
    """Members that are not given are as the header's initialiser has them."""

    c_name: str
    defaults: dict[str, Any] = {}

    def __init__(self, *arguments: Any, **members: Any) -> None:
        super().__init__(*arguments, **(members if arguments else {**self.defaults, **members}))


XM_OK = 0
XM_IN_PROGRESS = 1
XM_ERR_IO = -21
XM_ERR_PEER_DIED = -60
XM_ERR_TIMEOUT = -61
XM_ERR_CANCELED = -62
XM_ERR_CORRUPT = -81
AP_MEMORY_RESERVE_DEFAULT = -1
AP_MAX_MESH_RANK = 4
AP_EXPORT_JAX = 0
AP_RECOMPUTE_AUTO = 0
AP_RECOMPUTE_OFF = 1
AP_ROLE_DATA = 1
AP_ROLE_TENSOR = 4
AP_ROLES_ALL = 7
AP_PARAMETER_REPLICATED = 0
AP_PARAMETER_MODES = 3
XM_MAX_AXES = 8
XM_MAX_DIMS = 12
XM_STRATEGY_SEND_RECV = 0
XM_STRATEGY_AUTO = 3
XM_SCHEDULER_NAIVE = 0
XM_SCHEDULER_AUTO = 5
XM_VERIFY_DEFAULT = 0


class Layering(Base):
    c_name = "ap_layering_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("layers", c_int),
        ("pattern", c_char_p),
        ("marks", POINTER(c_char_p)),
        ("mark_count", c_size_t),
        ("one_tensor", c_bool),
    ]


Layering.defaults = {"struct_size": ctypes.sizeof(Layering)}


class AlpaParams(Base):
    c_name = "ap_alpa_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("alpha", c_double * 4),
        ("beta", c_double * 4),
        ("replicated_penalty", c_double),
        ("force_data_parallel", c_bool),
    ]


AlpaParams.defaults = {"struct_size": ctypes.sizeof(AlpaParams), "alpha": (1, 1, 1, 1,), "beta": (1, 0.1, 0.1, 0.1,), "replicated_penalty": 2}


SHARDING_PARAMS_PROGRESS = CFUNCTYPE(None, c_void_p, c_double, c_char_p)


class ShardingParams(Base):
    c_name = "ap_sharding_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("graph", c_void_p),
        ("mesh", c_void_p),
        ("micro_batches", c_int),
        ("memory_limit", c_double),
        ("state_bytes", c_double),
        ("recompute", c_bool),
        ("every_layer", c_bool),
        ("time_limit", c_double),
        ("threads", c_int),
        ("seed", c_uint64),
        ("progress", SHARDING_PARAMS_PROGRESS),
        ("progress_arg", c_void_p),
        ("memory_reserve", c_double),
    ]


ShardingParams.defaults = {"struct_size": ctypes.sizeof(ShardingParams), "seed": 1, "memory_reserve": AP_MEMORY_RESERVE_DEFAULT}


class ShardResult(Base):
    c_name = "ap_shard_result_t"
    _fields_ = [
        ("objective", c_double),
        ("bound", c_double),
        ("optimal", c_bool),
        ("repeatable", c_bool),
        ("peak", c_double),
        ("peak_op", c_int),
        ("variables", c_int),
        ("alike", c_int),
        ("recomputed", c_int),
        ("seconds", c_double),
    ]


class Space(Base):
    c_name = "ap_space_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("roles", c_uint * 4),
        ("parameter_modes", c_uint),
        ("scatter", c_bool),
        ("one_axis", c_bool),
        ("pipeline", c_bool),
        ("stage_devices", c_int),
        ("recompute", c_bool),
        ("keep", c_bool),
        ("mixed", c_bool),
        ("cut_products", c_bool),
        ("stage_shape", c_int * 2),
    ]


Space.defaults = {"struct_size": ctypes.sizeof(Space), "roles": (AP_ROLES_ALL, AP_ROLES_ALL, AP_ROLES_ALL, AP_ROLES_ALL,), "parameter_modes": (1 << AP_PARAMETER_MODES) - 1, "scatter": True, "pipeline": True, "recompute": True, "keep": True, "mixed": True}


class PlannerPin(Base):
    c_name = "ap_planner_pin_t"
    _fields_ = [
        ("first_layer", c_int),
        ("last_layer", c_int),
        ("hosts", c_int),
        ("devices", c_int),
        ("shape", c_int * 2),
    ]


PLANNER_PARAMS_PROGRESS = CFUNCTYPE(None, c_void_p, c_double, c_char_p)


class PlannerParams(Base):
    c_name = "ap_planner_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("model", c_char_p),
        ("graph", c_void_p),
        ("layering", Layering),
        ("dims", POINTER(c_char_p)),
        ("dim_count", c_size_t),
        ("profile", c_void_p),
        ("layers", c_int),
        ("global_batch", c_int64),
        ("micro_batches", POINTER(c_int64)),
        ("micro_batch_count", c_size_t),
        ("min_stages", c_int),
        ("max_stages", c_int),
        ("memory_limit", c_double),
        ("recompute", c_int),
        ("schedule", c_char_p),
        ("all_submeshes", c_bool),
        ("space", POINTER(Space)),
        ("keep_host_order", c_bool),
        ("all_devices", c_bool),
        ("free_boundaries", c_bool),
        ("pins", POINTER(PlannerPin)),
        ("pin_count", c_int),
        ("time_limit", c_double),
        ("margin", c_double),
        ("progress", PLANNER_PARAMS_PROGRESS),
        ("progress_arg", c_void_p),
        ("memory_reserve", c_double),
    ]


PlannerParams.defaults = {"struct_size": ctypes.sizeof(PlannerParams), "layering": Layering(), "recompute": AP_RECOMPUTE_AUTO, "memory_reserve": AP_MEMORY_RESERVE_DEFAULT}


class PlannerInfo(Base):
    c_name = "ap_planner_info_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("objective", c_double),
        ("bound", c_double),
        ("stopped", c_bool),
        ("host_orders", c_int),
        ("stages_priced", c_int64),
        ("boundaries_simulated", c_int64),
    ]


PlannerInfo.defaults = {"struct_size": ctypes.sizeof(PlannerInfo)}


OOB_ALLGATHER_POST = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t, POINTER(c_void_p))
OOB_ALLGATHER_TEST = CFUNCTYPE(c_int, c_void_p)
OOB_ALLGATHER_FREE = CFUNCTYPE(None, c_void_p)


class Oob(Base):
    c_name = "xm_oob_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int),
        ("size", c_int),
        ("context", c_void_p),
        ("allgather_post", OOB_ALLGATHER_POST),
        ("allgather_test", OOB_ALLGATHER_TEST),
        ("allgather_free", OOB_ALLGATHER_FREE),
    ]


Oob.defaults = {"struct_size": ctypes.sizeof(Oob)}


class JobEnv(Base):
    c_name = "xm_job_env_t"
    _fields_ = [
        ("rank", c_int),
        ("size", c_int),
        ("master_addr", c_char * 256),
        ("master_port", c_int),
        ("pmix", c_bool),
    ]


class WorkerParams(Base):
    c_name = "xm_worker_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("transport", c_char_p),
        ("host", c_char_p),
        ("listen_fd", c_int),
        ("timeout", c_double),
        ("oob", POINTER(Oob)),
        ("oob_only", c_bool),
    ]


WorkerParams.defaults = {"struct_size": ctypes.sizeof(WorkerParams), "listen_fd": -1}


class GroupShrinkParams(Base):
    c_name = "xm_group_shrink_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("timeout", c_double),
        ("min_size", c_int),
        ("exclude_count", c_int),
        ("exclude", POINTER(c_int)),
    ]


GroupShrinkParams.defaults = {"struct_size": ctypes.sizeof(GroupShrinkParams)}


class Box(Base):
    c_name = "xm_box_t"
    _fields_ = [
        ("dims", c_int),
        ("lo", c_int64 * 12),
        ("hi", c_int64 * 12),
    ]


class Spec(Base):
    c_name = "xm_spec_t"
    _fields_ = [
        ("dims", c_int),
        ("axis_count", c_int * 12),
        ("axes", (c_uint8 * 8 * 12)),
    ]


class NetworkParams(Base):
    c_name = "xm_network_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("ranks", c_int),
        ("host_of_rank", POINTER(c_int)),
        ("nic_bandwidth", c_double),
        ("nic_latency", c_double),
        ("host_bandwidth", c_double),
        ("host_latency", c_double),
        ("egress", POINTER(c_double)),
        ("ingress", POINTER(c_double)),
        ("rack_of_host", POINTER(c_int)),
        ("uplink_bandwidth", c_double),
        ("rail_of_rank", POINTER(c_int)),
        ("rail_egress", POINTER(c_double)),
        ("rail_ingress", POINTER(c_double)),
        ("nics_per_host", c_int),
        ("nic_weights", POINTER(c_double)),
        ("cores_per_host", c_double),
        ("nic_cpu", c_double),
        ("host_cpu", c_double),
    ]


NetworkParams.defaults = {"struct_size": ctypes.sizeof(NetworkParams)}


class Tensor(Base):
    c_name = "xm_tensor_t"
    _fields_ = [
        ("name", c_char_p),
        ("src", c_void_p),
        ("dst", c_void_p),
        ("element_bits", c_int),
    ]


class PlanParams(Base):
    c_name = "xm_plan_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("tensors", POINTER(Tensor)),
        ("tensor_count", c_int),
        ("src", c_void_p),
        ("dst", c_void_p),
        ("element_size", c_int64),
        ("strategy", c_int),
        ("scheduler", c_int),
        ("chunk_bytes", c_uint64),
        ("seed", c_uint64),
        ("node_budget", c_int64),
        ("network", c_void_p),
    ]


PlanParams.defaults = {"struct_size": ctypes.sizeof(PlanParams), "strategy": XM_STRATEGY_AUTO, "scheduler": XM_SCHEDULER_AUTO}


class PlanInfo(Base):
    c_name = "xm_plan_info_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("ranks", c_int),
        ("strategy", c_int),
        ("scheduler", c_int),
        ("strategy_name", c_char_p),
        ("scheduler_name", c_char_p),
        ("bytes", c_uint64),
        ("net_bytes", c_uint64),
        ("bound_ns", c_int64),
        ("makespan_ns", c_int64),
        ("hops", c_int64),
        ("digest", c_char * 33),
        ("kept_bytes", c_uint64),
        ("gone_bytes", c_uint64),
    ]


PlanInfo.defaults = {"struct_size": ctypes.sizeof(PlanInfo), "strategy": XM_STRATEGY_SEND_RECV, "scheduler": XM_SCHEDULER_NAIVE}


class PlanHop(Base):
    c_name = "xm_plan_hop_t"
    _fields_ = [
        ("transfer", c_int64),
        ("sender", c_int),
        ("receiver", c_int),
        ("bytes", c_uint64),
        ("start_ns", c_int64),
        ("end_ns", c_int64),
    ]


class TensorBuffers(Base):
    c_name = "xm_tensor_buffers_t"
    _fields_ = [
        ("src", c_void_p),
        ("src_bytes", c_uint64),
        ("dst", c_void_p),
        ("dst_bytes", c_uint64),
    ]


RESHARD_PARAMS_TENSOR_DONE = CFUNCTYPE(None, c_void_p, c_int)


class ReshardParams(Base):
    c_name = "xm_reshard_params_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("tensors", POINTER(Tensor)),
        ("tensor_count", c_int),
        ("buffers", POINTER(TensorBuffers)),
        ("dtype", c_char_p),
        ("strategy", c_int),
        ("scheduler", c_int),
        ("network", c_void_p),
        ("plan", c_void_p),
        ("memory_limit", c_uint64),
        ("window", c_int),
        ("turns", c_bool),
        ("turn_ahead", c_uint64),
        ("device_peers", c_bool),
        ("tensor_done", RESHARD_PARAMS_TENSOR_DONE),
        ("arg", c_void_p),
        ("refusal", c_char_p),
        ("verify", c_int),
    ]


ReshardParams.defaults = {"struct_size": ctypes.sizeof(ReshardParams), "tensor_count": 1, "strategy": XM_STRATEGY_AUTO, "scheduler": XM_SCHEDULER_AUTO, "verify": XM_VERIFY_DEFAULT}


class XlaPart(Base):
    c_name = "xm_xla_part_t"
    _fields_ = [
        ("struct_size", c_size_t),
        ("id", c_int64),
        ("position", c_int32),
        ("sends", c_bool),
        ("reshard", c_void_p),
        ("buffer", c_void_p),
        ("bytes", c_uint64),
        ("timeout", c_double),
    ]


XlaPart.defaults = {"struct_size": ctypes.sizeof(XlaPart)}


STRUCTURES: tuple[type[Base], ...] = (Layering, AlpaParams, ShardingParams, ShardResult, Space, PlannerPin, PlannerParams, PlannerInfo, Oob, JobEnv, WorkerParams, GroupShrinkParams, Box, Spec, NetworkParams, Tensor, PlanParams, PlanInfo, PlanHop, TensorBuffers, ReshardParams, XlaPart)
HEADERS = ("autopar/api.h", "autopar/cost.h", "autopar/explain.h", "autopar/export.h", "autopar/frontend.h", "autopar/graph.h", "autopar/like.h", "autopar/plan.h", "autopar/planner.h", "autopar/planner_command.h", "autopar/profile.h", "autopar/shard.h", "autopar/simulate.h", "autopar/verify.h", "crossmesh/api.h", "crossmesh/counters.h", "crossmesh/group.h", "crossmesh/job.h", "crossmesh/layout.h", "crossmesh/mesh.h", "crossmesh/message.h", "crossmesh/network.h", "crossmesh/plan.h", "crossmesh/profile.h", "crossmesh/reshard.h", "crossmesh/shared_memory.h", "crossmesh/status.h", "crossmesh/worker.h", "plugins/xla/ffi_transfer.h")

# Of each function: whether it returns a status, its result, its arguments.
CROSSMESH: dict[str, tuple[bool, Any, tuple[Any, ...]]] = {
    "xm_last_error": (False, c_char_p, ()),
    "xm_job_env_read": (True, c_int, (POINTER(JobEnv),)),
    "xm_worker_create": (True, c_int, (POINTER(JobEnv), POINTER(WorkerParams), POINTER(c_void_p))),
    "xm_worker_destroy": (False, None, (c_void_p, c_char_p)),
    "xm_worker_rank": (False, c_int, (c_void_p,)),
    "xm_worker_size": (False, c_int, (c_void_p,)),
    "xm_worker_host_of": (False, c_int, (c_void_p, c_int)),
    "xm_worker_host_name": (False, c_char_p, (c_void_p, c_int)),
    "xm_worker_timeout": (False, c_double, (c_void_p,)),
    "xm_worker_now": (False, c_int64, (c_void_p,)),
    "xm_worker_wait": (True, c_int, (c_void_p, c_int64)),
    "xm_worker_progress": (True, c_int, (c_void_p,)),
    "xm_worker_wake": (False, None, (c_void_p,)),
    "xm_worker_allgather_post": (True, c_int, (c_void_p, c_void_p, c_void_p, c_size_t)),
    "xm_worker_allgather_test": (True, c_int, (c_void_p,)),
    "xm_worker_allgather_abandon": (True, c_int, (c_void_p, c_double)),
    "xm_group_abort": (True, c_int, (c_void_p, c_char_p)),
    "xm_group_shrink_with": (True, c_int, (c_void_p, POINTER(GroupShrinkParams))),
    "xm_group_generation": (False, c_int, (c_void_p,)),
    "xm_group_job_rank": (False, c_int, (c_void_p, c_int)),
    "xm_mesh_create": (True, c_int, (c_int, POINTER(c_int), POINTER(c_int), POINTER(c_void_p))),
    "xm_mesh_parse": (True, c_int, (c_char_p, c_char_p, c_int, POINTER(c_void_p))),
    "xm_mesh_destroy": (False, None, (c_void_p,)),
    "xm_mesh_axes": (False, c_int, (c_void_p,)),
    "xm_mesh_axis_size": (False, c_int, (c_void_p, c_int)),
    "xm_mesh_size": (False, c_int, (c_void_p,)),
    "xm_mesh_rank": (False, c_int, (c_void_p, c_int)),
    "xm_mesh_position": (False, c_int, (c_void_p, c_int)),
    "xm_spec_parse": (True, c_int, (c_char_p, POINTER(Spec))),
    "xm_partition_parse": (True, c_int, (c_char_p, POINTER(c_int))),
    "xm_layout_create": (True, c_int, (c_void_p, POINTER(Spec), c_int, POINTER(c_int64), POINTER(c_void_p))),
    "xm_layout_create_explicit": (True, c_int, (c_void_p, POINTER(Spec), POINTER(c_int64), POINTER(POINTER(c_int64)), POINTER(c_void_p))),
    "xm_layout_destroy": (False, None, (c_void_p,)),
    "xm_layout_parts": (False, c_int, (c_void_p, c_int)),
    "xm_layout_cuts": (False, POINTER(c_int64), (c_void_p, c_int)),
    "xm_layout_tile_of_rank": (False, c_int, (c_void_p, c_int)),
    "xm_layout_tile_box": (False, None, (c_void_p, c_int, POINTER(Box))),
    "xm_layout_buffer_bytes": (False, c_uint64, (c_void_p, c_int, c_int64)),
    "xm_message_send": (True, c_int, (c_void_p, c_int, c_uint64, c_void_p, c_size_t, POINTER(c_void_p))),
    "xm_message_receive": (True, c_int, (c_void_p, c_int, c_uint64, c_void_p, c_size_t, POINTER(c_void_p))),
    "xm_message_test": (True, c_int, (c_void_p,)),
    "xm_message_destroy": (False, None, (c_void_p,)),
    "xm_cluster_profile_load": (True, c_int, (c_char_p, POINTER(c_void_p))),
    "xm_cluster_profile_destroy": (False, None, (c_void_p,)),
    "xm_network_create": (True, c_int, (POINTER(NetworkParams), POINTER(c_void_p))),
    "xm_network_from_profile": (True, c_int, (c_void_p, c_int, POINTER(c_int), POINTER(c_void_p))),
    "xm_network_destroy": (False, None, (c_void_p,)),
    "xm_network_ranks": (False, c_int, (c_void_p,)),
    "xm_network_hosts": (False, c_int, (c_void_p,)),
    "xm_network_host_of": (False, c_int, (c_void_p, c_int)),
    "xm_strategy_parse": (True, c_int, (c_char_p, POINTER(c_int))),
    "xm_scheduler_parse": (True, c_int, (c_char_p, POINTER(c_int))),
    "xm_plan_create": (True, c_int, (POINTER(PlanParams), POINTER(c_void_p))),
    "xm_plan_destroy": (False, None, (c_void_p,)),
    "xm_plan_get_info": (True, c_int, (c_void_p, POINTER(PlanInfo))),
    "xm_plan_simulate": (True, c_int, (c_void_p, c_void_p, c_int, POINTER(PlanHop), POINTER(c_int64))),
    "xm_plan_verify": (True, c_int, (c_void_p,)),
    "xm_plan_to_json": (True, c_int, (c_void_p, POINTER(c_void_p))),
    "xm_reshard_begin": (True, c_int, (c_void_p, POINTER(ReshardParams), POINTER(c_void_p))),
    "xm_reshard_post": (True, c_int, (c_void_p, c_int64)),
    "xm_reshard_post_after": (True, c_int, (c_void_p, c_void_p, c_int64)),
    "xm_reshard_test": (True, c_int, (c_void_p,)),
    "xm_reshard_wait": (True, c_int, (c_void_p, c_int64)),
    "xm_reshard_verify": (True, c_int, (c_void_p, c_int64)),
    "xm_reshard_staging_bytes": (False, c_uint64, (c_void_p,)),
    "xm_reshard_device_path": (False, c_char_p, (c_void_p,)),
    "xm_reshard_destroy": (False, None, (c_void_p,)),
    "xm_network_from_worker": (True, c_int, (c_void_p, POINTER(c_void_p))),
}

# Of each function: whether it returns a status, its result, its arguments.
AUTOPAR: dict[str, tuple[bool, Any, tuple[Any, ...]]] = {
    "ap_last_error": (False, c_char_p, ()),
    "ap_free": (False, None, (c_void_p,)),
    "ap_graph_destroy": (False, None, (c_void_p,)),
    "ap_graph_make_layers": (True, c_int, (c_void_p, POINTER(Layering), POINTER(c_void_p))),
    "ap_profile_load": (True, c_int, (c_char_p, POINTER(c_void_p))),
    "ap_profile_from_text": (True, c_int, (c_char_p, c_size_t, c_char_p, POINTER(c_void_p))),
    "ap_profile_resize": (True, c_int, (c_void_p, c_int, c_int, POINTER(c_void_p))),
    "ap_profile_hosts": (False, c_int, (c_void_p,)),
    "ap_profile_devices_per_host": (False, c_int, (c_void_p,)),
    "ap_profile_destroy": (False, None, (c_void_p,)),
    "ap_cost_model_create_profile": (True, c_int, (c_void_p, POINTER(c_void_p))),
    "ap_cost_model_create_alpa": (True, c_int, (POINTER(AlpaParams), POINTER(c_void_p))),
    "ap_cost_model_destroy": (False, None, (c_void_p,)),
    "ap_cost_mesh_create": (True, c_int, (c_void_p, c_int, c_int, POINTER(c_int), c_int, POINTER(c_void_p))),
    "ap_cost_mesh_destroy": (False, None, (c_void_p,)),
    "ap_plan_text": (False, c_void_p, (c_void_p,)),
    "ap_plan_destroy": (False, None, (c_void_p,)),
    "ap_hlo_from_text": (True, c_int, (c_char_p, c_size_t, c_char_p, POINTER(c_void_p), POINTER(c_void_p))),
    "ap_json_from_text": (True, c_int, (c_char_p, c_size_t, c_char_p, POINTER(c_void_p))),
    "ap_json_text": (False, c_void_p, (c_void_p,)),
    "ap_frontend_notes_destroy": (False, None, (c_void_p,)),
    "ap_sharding_create": (True, c_int, (POINTER(ShardingParams), POINTER(c_void_p))),
    "ap_sharding_result": (False, POINTER(ShardResult), (c_void_p,)),
    "ap_sharding_destroy": (False, None, (c_void_p,)),
    "ap_export_sharding": (True, c_int, (c_void_p, c_void_p, c_int, POINTER(c_void_p))),
    "ap_planner_plan": (True, c_int, (POINTER(PlannerParams), POINTER(c_void_p), POINTER(PlannerInfo))),
}

# Of each function: whether it returns a status, its result, its arguments.
XLA: dict[str, tuple[bool, Any, tuple[Any, ...]]] = {
    "xm_xla_set_functions": (False, None, (c_int, c_int, c_int)),
    "xm_xla_slot_open": (True, c_int, (c_void_p, POINTER(c_void_p))),
    "xm_xla_lock": (False, None, (c_void_p,)),
    "xm_xla_unlock": (False, None, (c_void_p,)),
    "xm_xla_add": (True, c_int, (c_void_p, POINTER(XlaPart))),
    "xm_xla_remove": (False, None, (c_void_p, c_int64, c_char_p)),
    "xm_xla_slot_close": (False, None, (c_void_p,)),
    "xm_xla_transfer": (False, c_void_p, (c_void_p,)),
}
