/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/planner/search/planner_fixture.h"

#include "xm_test.h"

static xm_cluster_profile_t *make_profile(int hosts, int devices, double memory,
                                          const xm_cluster_device_t *kinds, const double *nics,
                                          int hosts_per_rack)
{
    static const xm_curve_point_t self[] = {{8, 1e-7}, {1 << 20, 1e-4}, {64 << 20, 6.4e-3}};
    static const xm_curve_point_t intra[] = {{8, 1e-6}, {1 << 20, 2.1e-4}, {64 << 20, 1.342e-2}};
    static const xm_curve_point_t inter[] = {{8, 2e-5}, {1 << 20, 1.07e-3}, {64 << 20, 6.71e-2}};
    xm_cluster_profile_params_t params = XM_CLUSTER_PROFILE_PARAMS_INIT;
    xm_cluster_profile_t *profile;

    params.name = "fixture";
    params.provenance = "assumed for tests";
    params.hosts = hosts;
    params.devices_per_host = devices;
    params.device.flops = 5e10;
    params.device.memory_bytes = memory;
    params.device.memory_bandwidth = 1e10;
    params.host_device = kinds;
    params.nic_bandwidth = 1e9;
    params.host_nic_bandwidth = nics;
    params.hosts_per_rack = hosts_per_rack;
    params.uplink_bandwidth = hosts_per_rack > 0 ? 1e9 : 0;
    params.curve[XM_LINK_SELF] = self;
    params.curve[XM_LINK_INTRA_HOST] = intra;
    params.curve[XM_LINK_INTER_HOST] = inter;
    for (int link = 0; link < XM_LINK_CLASS_COUNT; ++link) {
        params.curve_points[link] = 3;
    }
    ck_assert_xm_ok(xm_cluster_profile_create(&params, &profile));
    return profile;
}

xm_cluster_profile_t *planner_fixture_profile(int hosts, int devices, double memory)
{
    return make_profile(hosts, devices, memory, NULL, NULL, 0);
}

xm_cluster_profile_t *planner_fixture_two_kinds(int hosts, int devices, double memory)
{
    enum { MOST_HOSTS = 16 };
    xm_cluster_device_t kinds[MOST_HOSTS];

    ck_assert_int_le(hosts, MOST_HOSTS);
    for (int h = 0; h < hosts; ++h) {
        double share = h == hosts - 1 ? 0.5 : 1.0;

        kinds[h] = (xm_cluster_device_t){.flops = share * 5e10,
                                         .memory_bytes = share * memory,
                                         .memory_bandwidth = share * 1e10};
    }
    return make_profile(hosts, devices, memory, kinds, NULL, 0);
}

xm_cluster_profile_t *planner_fixture_unequal(int hosts, int devices, double memory,
                                              const double *shares, const double *nics,
                                              int hosts_per_rack)
{
    enum { MOST_HOSTS = 16 };
    xm_cluster_device_t kinds[MOST_HOSTS];

    ck_assert_int_le(hosts, MOST_HOSTS);
    for (int h = 0; shares != NULL && h < hosts; ++h) {
        kinds[h] = (xm_cluster_device_t){.flops = shares[h] * 5e10,
                                         .memory_bytes = shares[h] * memory,
                                         .memory_bandwidth = shares[h] * 1e10};
    }
    return make_profile(hosts, devices, memory, shares != NULL ? kinds : NULL, nics,
                        hosts_per_rack);
}

xm_cluster_profile_t *planner_fixture_two_rates(int hosts, int devices, double memory)
{
    enum { MOST_HOSTS = 16 };
    double nics[MOST_HOSTS];

    ck_assert_int_le(hosts, MOST_HOSTS);
    for (int h = 0; h < hosts; ++h) {
        nics[h] = h % 2 == 0 ? 1e9 : 5e8;
    }
    return make_profile(hosts, devices, memory, NULL, nics, 2);
}

int64_t planner_fixture_step_ns(const ap_plan_t *plan, ap_schedule_kind_t kind,
                                const xm_cluster_profile_t *profile)
{
    ap_plan_simulation_t simulation = AP_PLAN_SIMULATION_INIT;
    ap_schedule_t *schedule;
    ap_pipeline_run_t *run;
    int64_t step;

    simulation.kind = kind;
    simulation.profile = profile;
    ck_assert_xm_ok(ap_plan_simulate(plan, &simulation, &schedule, &run));
    step = run->step_ns;
    ap_pipeline_run_destroy(run);
    ap_schedule_destroy(schedule);
    return step;
}
