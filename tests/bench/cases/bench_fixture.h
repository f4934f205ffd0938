/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bench_fixture.h
 * Suite cases by name, planned on emulated hosts with NICs of 1 GiB/s, so that times in seconds are
 * GiB through one NIC.
 */
#pragma once

#include "bench/cases/prepared.h"
#include "bench/run/rates.h"
#include "xm_test.h"

#define GIB 1073741824.0

typedef struct bench_fixture {
    rb_case_t one;
    rb_host_map_t hosts;
    xm_network_t *network;
    rb_prepared_t prepared;
} bench_fixture_t;

static inline void bench_fixture_case(const char *name, rb_case_t *one)
{
    for (int i = 0; i < rb_suite_cases(); ++i) {
        if (strcmp(rb_suite_case_name(i), name) == 0) {
            ck_assert_xm_ok(rb_suite_case(i, one));
            return;
        }
    }
    ck_abort_msg("no case %s", name);
}

static inline void bench_fixture_open(const char *name, xm_strategy_t strategy,
                                      xm_scheduler_t scheduler, bench_fixture_t *fixture)
{
    rb_rates_t rates = {.nic_bandwidth = {GIB}, .nic_rates = 1, .host_bandwidth = 8 * GIB};

    bench_fixture_case(name, &fixture->one);
    fixture->one.strategy = (int)strategy;
    fixture->one.scheduler = (int)scheduler;
    ck_assert_xm_ok(rb_host_map_emulate(20, 4, &fixture->hosts));
    ck_assert_xm_ok(rb_rates_network(&rates, &fixture->hosts, NULL, &fixture->network));
    ck_assert_xm_ok(
        rb_prepare(&fixture->one, &fixture->hosts, fixture->network, &fixture->prepared));
}

static inline void bench_fixture_close(bench_fixture_t *fixture)
{
    rb_prepared_clear(&fixture->prepared);
    xm_network_destroy(fixture->network);
    rb_host_map_clear(&fixture->hosts);
    rb_case_clear(&fixture->one);
}
