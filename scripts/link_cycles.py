#!/usr/bin/env python3
"""Cycles in the house: of links between objects (nm, undefined -> defined) and of includes between rooms.

Usage: link_cycles.py [build directory]. A room is a name of the table below. It exits with 1 if a cycle of rooms
exists, by links or by includes, or if a cycle of objects inside a room holds more than three.
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOMS = {
    "comm/base": "api clock config curve_text error_save host_identity json_read list little_endian log log_filter log_level"
                 " path_pattern random resolve siphash status text text_file versions",
    "comm/doctor": "doctor*",
    "comm/fault": "contact heartbeat heartbeat_wire liveness regroup regroup_wire vigil",
    "comm/job": "bootstrap bootstrap_adopt bootstrap_connect bootstrap_create bootstrap_identity bootstrap_link bootstrap_listen bootstrap_oob"
                " bootstrap_pmix bootstrap_private bootstrap_rendezvous bootstrap_star bootstrap_tcp"
                " bootstrap_tcp_create bootstrap_wire job_env job_secret launcher",
    "comm/memory": "memory memory_cuda memory_cuda_copy memory_cuda_driver memory_cuda_kernel memory_cuda_private"
                   " memory_cuda_share memory_host shared_memory strided",
    "comm/pipe": "pipe*",
    "comm/probe": "collective_library collective_measure collective_mpi collective_nccl collective_open nccl_library"
                  " probe probe_collective probe_compute probe_flows probe_link probe_nic probe_private probe_profile"
                  " probe_state",
    "comm/profile": "cluster_profile cluster_profile_json cluster_profile_order cluster_profile_private"
                    " collective_curve collective_import collective_table curve curve_json curve_fit op_times"
                    " profile_compare",
    "comm/topology": "nic_choice nic_choice_print nic_choice_private nic_choice_verdict nic_network nic_watch nics"
                     " topology topology_nic topology_path topology_print topology_private topology_sysfs"
                     " topology_xml",
    "comm/transport": "counters counters_private stripe transport",
    "comm/transport/sim": "transport_sim transport_sim_fabric transport_sim_order transport_sim_private",
    "comm/transport/ucx": "transport_ucx*",
    "comm/transport/verbs": "transport_verbs*",
    "comm/worker": "group message metrics worker worker_nics worker_private worker_seats worker_watch",
    "resharding/.": "resharding",
    "resharding/execute": "agree checksum execute* reshard carrier*",
    "resharding/layout": "box layout mesh spec stream_copy unit_task view",
    "resharding/network": "network",
    "resharding/plan": "class_bound draft emit order plan plan_access plan_digest plan_json plan_private schedule"
                       " schedule_parts schedule_private simulate simulate_fair simulate_private simulate_resources"
                       " strategy strategy_allgather strategy_broadcast strategy_chain strategy_send_recv task_class"
                       " verify",
    "resharding/solve": "bound bound_problem bound_relay dominance exclusive exclusive_bound exclusive_list exclusive_search flow"
                        " openshop outflow problem schedule_dfs schedule_greedy schedule_openshop"
                        " schedule_openshop_colour schedule_openshop_cycle schedule_openshop_list"
                        " schedule_openshop_record schedule_openshop_split schedule_openshop_swarm schedule_simple",
    "bench/cases": "boundary case case_model choices dtype host_map options placement prepared prepared_list select",
    "bench/model": "json_file layout_pool model model_family model_file model_layout model_pack model_sharding"
                   " model_sharding_file parallel_config tensor_list",
    "bench/report": "comparison document lanes report table timeline trace",
    "bench/reshard_bench": "check dry_run job main offline show_topology simulated",
    "bench/run": "cluster collective device_buffers emulation job_case job_info pattern rates records result"
                 " tile_buffers",
    "bench/probes": "bootstrap_bench pack_bench plan_scale planner_scale published_plans transport_bench",
}
FOLDERS = ("comm", "resharding", "bench", "cli_support", "plugins")


def room_of(path):
    """The room of a source file or header given by its path in the tree."""
    folder, name = path.parent.as_posix(), path.stem
    for room, names in ROOMS.items():
        if room.split("/")[0] != folder:
            continue
        for pattern in names.split():
            if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
                return room
    return folder


def components(graph):
    """The strongly connected components with more than one node (Tarjan, by a stack of its own)."""
    index, low, on_stack, stack, found = {}, {}, set(), [], []
    for root in graph:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(sorted(graph[root])))]
        while work:
            node, after = work[-1]
            for target in after:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    part = []
                    while not part or part[-1] != node:
                        part.append(stack.pop())
                        on_stack.discard(part[-1])
                    if len(part) > 1:
                        found.append(sorted(part))
    return found


def links(build):
    """Who uses whose symbols: source -> {source: {symbol}}."""
    defined, wanted = {}, collections.defaultdict(set)
    for path in sorted(build.glob("**/*.o")):
        name = path.relative_to(build).as_posix()
        match = re.match(r"(.*)/CMakeFiles/[^/]+\.dir/(.*)\.o$", name)
        if not match or match[1].startswith("tests") or not match[1].startswith(FOLDERS):
            continue
        source = pathlib.PurePosixPath(match[1]) / match[2]
        if not pathlib.Path(source).exists():
            continue  # what an earlier build has left, or generated
        for line in subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout.splitlines():
            kind, symbol = line[17:].split(" ", 1)
            if kind in "TDBRVWC":
                defined[symbol] = source
            elif kind == "U":
                wanted[source].add(symbol)
    graph = collections.defaultdict(lambda: collections.defaultdict(set))
    for source, symbols in wanted.items():
        for symbol in symbols:
            if symbol in defined and defined[symbol] != source:
                graph[source][defined[symbol]].add(symbol)
    for target in list(defined.values()):
        graph[target]
    return graph


def includes():
    """Which file includes which of the tree: source -> {header: {header}}."""
    graph = collections.defaultdict(lambda: collections.defaultdict(set))
    for folder in FOLDERS:
        for path in sorted(pathlib.Path(folder).glob("**/*.[ch]")):
            for header in re.findall(r'^#include [<"]((?:crossmesh/)?[^">]+)[">]', path.read_text(), re.M):
                if pathlib.Path(header).exists():
                    graph[pathlib.PurePosixPath(path)][pathlib.PurePosixPath(header)].add(header)
    return graph


def rooms(graph):
    """The graph of the rooms."""
    between = collections.defaultdict(lambda: collections.defaultdict(set))
    for source, targets in list(graph.items()):
        between[room_of(source)]
        for target, why in targets.items():
            between[room_of(target)]
            if room_of(source) != room_of(target):
                between[room_of(source)][room_of(target)] |= {f"{source.name} -> {name}" for name in why}
    return between


def report_rooms(what, graph):
    bad = 0
    between = rooms(graph)
    for part in components(between):
        bad = 1
        print(f"rooms, by {what}: " + " ".join(part))
        for source in part:
            for target in sorted(set(between[source]) & set(part)):
                print(f"    {source} -> {target}: " + ", ".join(sorted(between[source][target])[:6]))
    return bad


def report_objects(graph, verbose):
    bad = 0
    for part in components(graph):
        bad |= len(part) > 3
        print(f"{len(part)} objects: " + " ".join(name.as_posix() for name in part))
        for source in part if verbose else ():
            for target in sorted(set(graph[source]) & set(part)):
                print(f"    {source.stem} -> {target.stem}: " + ", ".join(sorted(graph[source][target])))
    return bad


def main():
    words = [word for word in sys.argv[1:] if word != "-v"]
    graph = links(pathlib.Path(words[0] if words else "build/release"))
    bad = report_objects(graph, "-v" in sys.argv)
    bad |= report_rooms("links", graph)
    bad |= report_rooms("includes", includes())
    return bad


sys.exit(main())
