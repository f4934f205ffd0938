/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cases/options.h"

#include "xm_test.h"

/* Choices of the table are written out; they must be the libraries' names in their order. */
static void join(char *text, size_t size, int count, const char *(*name)(int))
{
    size_t used = 0;

    for (int i = 0; i < count; ++i) {
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? "|" : "", name(i));
    }
}

static const char *strategy_name(int index)
{
    return xm_strategy_name((xm_strategy_t)index);
}

static const char *scheduler_name(int index)
{
    return xm_scheduler_name((xm_scheduler_t)index);
}

START_TEST(strategies_and_schedulers_are_those_of_plans)
{
    char text[256];

    join(text, sizeof(text), XM_STRATEGY_COUNT, strategy_name);
    ck_assert_str_eq(RB_STRATEGY_NAMES, text);
    join(text, sizeof(text), XM_SCHEDULER_COUNT, scheduler_name);
    ck_assert_str_eq(RB_SCHEDULER_NAMES, text);
}
END_TEST

#define PARSE(options, ...)                                                                        \
    rb_options_parse((int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)),                      \
                     (char *[]){__VA_ARGS__}, options)

static char program[] = "reshard-bench", suite_option[] = "--suite", model[] = "model";

START_TEST(rates_of_hosts_are_listed)
{
    char option[] = "--nic-gbps", list[] = "10,2.5,100", racks[] = "--racks=3",
         uplink[] = "--uplink-gbps=40", limit[] = "--memory-limit=4MiB";
    rb_options_t options;

    ck_assert_xm_ok(
        PARSE(&options, program, suite_option, model, option, list, racks, uplink, limit));
    ck_assert_int_eq(options.nic_rates, 3);
    ck_assert_double_eq(options.nic_gbps[1], 2.5);
    ck_assert_double_eq(options.nic_gbps[2], 100);
    ck_assert_int_eq(options.racks, 3);
    ck_assert_double_eq(options.uplink_gbps, 40);
    ck_assert_uint_eq(options.memory_limit, 4 << 20);
    rb_options_clear(&options);
}
END_TEST

START_TEST(nics_of_a_host_add_up)
{
    char option[] = "--nic-gbps=10,2.5", nics[] = "--nics-per-host=2", uneven[] = "--uneven=1,0.5",
         three[] = "--nics-per-host=3", hosts[] = "--hosts=2", each[] = "--ranks-per-host=2",
         dry[] = "--dry-run", all[] = "--all-nics", share[] = "--core-share=0.2";
    rb_options_t options;

    ck_assert_xm_ok(PARSE(&options, program, suite_option, model, option, nics));
    ck_assert_double_eq(options.nic_gbps[0], 20);
    ck_assert_double_eq(options.nic_gbps[1], 5);
    ck_assert(!rb_options_emulate(&options));
    rb_options_clear(&options);
    ck_assert_xm_ok(PARSE(&options, program, suite_option, model, uneven, hosts, each));
    ck_assert_int_eq(options.nic_rates, 1);
    ck_assert_int_eq(options.nics_per_host, 2);
    ck_assert_double_eq(options.nic_gbps[0], 1.5);
    ck_assert(rb_options_emulate(&options));
    rb_options_clear(&options);
    ck_assert_xm_ok(PARSE(&options, program, suite_option, model, uneven, hosts, each, dry));
    ck_assert(!rb_options_emulate(&options));
    rb_options_clear(&options);
    ck_assert_xm_fails(PARSE(&options, program, suite_option, model, uneven, option),
                       XM_ERR_INVALID_ARGUMENT, "--nic-gbps and --uneven both");
    ck_assert_xm_fails(PARSE(&options, program, suite_option, model, uneven, three),
                       XM_ERR_INVALID_ARGUMENT, "2 NICs, but --nics-per-host says 3");
    ck_assert_xm_fails(PARSE(&options, program, suite_option, model, nics), XM_ERR_INVALID_ARGUMENT,
                       "--nics-per-host is given but --nic-gbps is not");
    ck_assert_xm_fails(PARSE(&options, program, suite_option, model, option, all),
                       XM_ERR_INVALID_ARGUMENT, "--all-nics is given but neither");
    ck_assert_xm_fails(PARSE(&options, program, suite_option, model, option, share),
                       XM_ERR_INVALID_ARGUMENT, "--core-share needs an emulated cluster");
}
END_TEST

START_TEST(more_rates_than_there_is_room_for_are_refused)
{
    char option[] = "--nic-gbps", list[2 * RB_NIC_RATES + 2];
    rb_options_t options;

    for (int i = 0; i <= RB_NIC_RATES; ++i) {
        memcpy(list + 2 * i, "1,", 2);
    }
    list[2 * RB_NIC_RATES + 1] = '\0';
    ck_assert_xm_fails(PARSE(&options, program, suite_option, model, option, list),
                       XM_ERR_INVALID_ARGUMENT, "--nic-gbps has more than 64 rates");
    list[2 * RB_NIC_RATES - 1] = '\0';
    ck_assert_xm_ok(PARSE(&options, program, suite_option, model, option, list));
    ck_assert_int_eq(options.nic_rates, RB_NIC_RATES);
    rb_options_clear(&options);
}
END_TEST

START_TEST(the_papers_protocol_is_thirteen_runs)
{
    char protocol[] = "--protocol=paper", warmup[] = "-w1", iterations[] = "--iterations=10";
    rb_options_t options;

    ck_assert_xm_ok(PARSE(&options, program, suite_option, model, protocol));
    ck_assert(options.paper);
    ck_assert_int_eq(options.warmup, 3);
    ck_assert_int_eq(options.iterations, 10);
    rb_options_clear(&options);
    ck_assert_xm_fails(PARSE(&options, program, suite_option, model, protocol, warmup),
                       XM_ERR_INVALID_ARGUMENT, "leave --warmup out");
    ck_assert_xm_fails(PARSE(&options, program, suite_option, model, protocol, iterations),
                       XM_ERR_INVALID_ARGUMENT, "leave --iterations out");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *tests = tcase_create("options");

    tcase_add_test(tests, strategies_and_schedulers_are_those_of_plans);
    tcase_add_test(tests, rates_of_hosts_are_listed);
    tcase_add_test(tests, the_papers_protocol_is_thirteen_runs);
    tcase_add_test(tests, nics_of_a_host_add_up);
    tcase_add_test(tests, more_rates_than_there_is_room_for_are_refused);
    suite_add_tcase(suite, tests);
    return xm_test_run(suite);
}
