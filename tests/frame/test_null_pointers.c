/* SPDX-License-Identifier: Apache-2.0 */
/* Every exported function with NULL in each of its required pointers: a sentence that names it, and
 * an error. The table covers each name of cmake/libcrossmesh.map; the last test compares. */
#include <crossmesh.h>

#include <stdio.h>

#include "xm_test.h"

static xm_mesh_t *mesh;
static xm_layout_t *layout;
static xm_network_t *network;
static xm_plan_t *plan;
static xm_cluster_profile_t *profile;
static xm_worker_t *worker;
static char gathered[1];

static xm_status_t post(void *context, const void *send, void *receive, size_t length,
                        void **request)
{
    (void)context;
    memcpy(receive, send, length);
    *request = gathered;
    return XM_OK;
}

static xm_status_t test_request(void *request)
{
    (void)request;
    return XM_OK;
}

static void free_request(void *request)
{
    (void)request;
}

/* One object of each kind, in a job of this process alone. */
static void set_up(void)
{
    static const xm_oob_t oob = {sizeof(oob), 0, 1, NULL, post, test_request, free_request};
    const int host_of_rank[] = {0, 1};
    const int64_t shape[] = {8};
    xm_worker_params_t joining = XM_WORKER_PARAMS_INIT;
    xm_network_params_t rates = XM_NETWORK_PARAMS_INIT;
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_spec_t spec;

    rates.ranks = 2;
    rates.host_of_rank = host_of_rank;
    rates.nic_bandwidth = rates.host_bandwidth = 1e9;
    ck_assert_xm_ok(xm_network_create(&rates, &network));
    ck_assert_xm_ok(xm_mesh_parse("2", NULL, 0, &mesh));
    ck_assert_xm_ok(xm_spec_parse("S0", &spec));
    ck_assert_xm_ok(xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, &layout));
    params.src = params.dst = layout;
    params.element_size = 4;
    params.network = network;
    ck_assert_xm_ok(xm_plan_create(&params, &plan));
    ck_assert_xm_ok(xm_cluster_profile_load(
        xm_test_source_path("tests/fixtures/profiles/lab-2x4.json"), &profile));
    joining.oob = &oob;
    joining.oob_only = true;
    ck_assert_xm_ok(xm_worker_create(NULL, &joining, &worker));
}

static void tear_down(void)
{
    xm_worker_destroy(worker, NULL);
    xm_cluster_profile_destroy(profile);
    xm_plan_destroy(plan);
    xm_layout_destroy(layout);
    xm_mesh_destroy(mesh);
    xm_network_destroy(network);
}

/* The call leaves the sentence "function: argument is NULL". */
static void expect_sentence(const char *call, const char *argument)
{
    char expected[128];

    (void)snprintf(expected, sizeof(expected), "%.*s: %s is NULL", (int)strcspn(call, "("), call,
                   argument);
    ck_assert_msg(strcmp(xm_last_error(), expected) == 0, "%s says '%s', not '%s'", call,
                  xm_last_error(), expected);
}

/* The sentence of an earlier call must not be taken for this one's. */
static void forget(void)
{
    xm_partition_t partition;

    (void)xm_partition_parse("explicit", &partition);
}

#define FAILS(argument, call)                                                                      \
    do {                                                                                           \
        forget();                                                                                  \
        ck_assert_int_eq((call), XM_ERR_INVALID_ARGUMENT);                                         \
        expect_sentence(#call, argument);                                                          \
    } while (0)

#define GIVES(value, argument, call)                                                               \
    do {                                                                                           \
        forget();                                                                                  \
        ck_assert((call) == (value));                                                              \
        expect_sentence(#call, argument);                                                          \
    } while (0)

#define LEAVES(argument, call)                                                                     \
    do {                                                                                           \
        forget();                                                                                  \
        call;                                                                                      \
        expect_sentence(#call, argument);                                                          \
    } while (0)

START_TEST(job_and_worker)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_job_env_t env = {.rank = 0, .size = 1, .master_port = -1};
    xm_worker_t *made;
    char byte = 0;

    FAILS("env", xm_job_env_read(NULL));
    FAILS("env", xm_worker_create(NULL, &params, &made));
    FAILS("params", xm_worker_create(&env, NULL, &made));
    FAILS("worker", xm_worker_create(&env, &params, NULL));
    GIVES(-1, "worker", xm_worker_rank(NULL));
    GIVES(0, "worker", xm_worker_size(NULL));
    GIVES(-1, "worker", xm_worker_host_of(NULL, 0));
    GIVES(NULL, "worker", xm_worker_host_name(NULL, 0));
    GIVES(0.0, "worker", xm_worker_timeout(NULL));
    GIVES(0, "worker", xm_worker_now(NULL));
    GIVES(0, "worker", xm_worker_deadline(NULL));
    FAILS("worker", xm_worker_wait(NULL, 0));
    FAILS("worker", xm_worker_progress(NULL));
    LEAVES("worker", xm_worker_wake(NULL));
    FAILS("worker", xm_worker_allgather(NULL, &byte, &byte, 1));
    FAILS("send", xm_worker_allgather(worker, NULL, &byte, 1));
    FAILS("receive", xm_worker_allgather(worker, &byte, NULL, 1));
    FAILS("worker", xm_worker_allgather_post(NULL, &byte, &byte, 1));
    FAILS("send", xm_worker_allgather_post(worker, NULL, &byte, 1));
    FAILS("receive", xm_worker_allgather_post(worker, &byte, NULL, 1));
    FAILS("worker", xm_worker_allgather_test(NULL));
    FAILS("worker", xm_worker_allgather_abandon(NULL, 0));
    xm_worker_destroy(NULL, NULL);
}
END_TEST

START_TEST(group_message_and_counters)
{
    xm_message_t *message;
    xm_peer_counts_t peer;
    xm_nic_counts_t nic;
    xm_rank_counts_t rank;
    char byte = 0;

    FAILS("worker", xm_group_abort(NULL, "why"));
    FAILS("sentence", xm_group_abort(worker, NULL));
    FAILS("worker", xm_group_shrink_with(NULL, NULL));
    GIVES(-1, "worker", xm_group_generation(NULL));
    GIVES(-1, "worker", xm_group_job_rank(NULL, 0));
    FAILS("worker", xm_message_send(NULL, 0, 0, &byte, 1, &message));
    FAILS("buffer", xm_message_send(worker, 0, 0, NULL, 1, &message));
    FAILS("message", xm_message_send(worker, 0, 0, &byte, 1, NULL));
    FAILS("worker", xm_message_receive(NULL, 0, 0, &byte, 1, &message));
    FAILS("buffer", xm_message_receive(worker, 0, 0, NULL, 1, &message));
    FAILS("message", xm_message_receive(worker, 0, 0, &byte, 1, NULL));
    FAILS("message", xm_message_test(NULL));
    xm_message_destroy(NULL);
    FAILS("worker", xm_worker_peer_counts(NULL, 0, &peer));
    FAILS("counts", xm_worker_peer_counts(worker, 0, NULL));
    FAILS("worker", xm_worker_nic_counts(NULL, 0, &nic));
    FAILS("counts", xm_worker_nic_counts(worker, 0, NULL));
    FAILS("worker", xm_worker_rank_counts(NULL, &rank));
    FAILS("counts", xm_worker_rank_counts(worker, NULL));
}
END_TEST

START_TEST(mesh_and_layout)
{
    const int two = 2;
    const int64_t shape[] = {8}, points[] = {0, 4, 8}, *const cuts[] = {points};
    xm_mesh_t *made;
    xm_layout_t *laid;
    xm_spec_t spec;
    xm_box_t box;
    xm_partition_t partition;

    ck_assert_xm_ok(xm_spec_parse("S0", &spec));
    FAILS("sizes", xm_mesh_create(1, NULL, NULL, &made));
    FAILS("mesh", xm_mesh_create(1, &two, NULL, NULL));
    FAILS("shape", xm_mesh_parse(NULL, "0-1", 0, &made));
    FAILS("mesh", xm_mesh_parse("2", NULL, 0, NULL));
    GIVES(0, "mesh", xm_mesh_axes(NULL));
    GIVES(0, "mesh", xm_mesh_axis_size(NULL, 0));
    GIVES(0, "mesh", xm_mesh_size(NULL));
    GIVES(-1, "mesh", xm_mesh_rank(NULL, 0));
    GIVES(-1, "mesh", xm_mesh_position(NULL, 0));
    xm_mesh_destroy(NULL);
    FAILS("text", xm_spec_parse(NULL, &spec));
    FAILS("spec", xm_spec_parse("R", NULL));
    FAILS("name", xm_partition_parse(NULL, &partition));
    FAILS("partition", xm_partition_parse("even", NULL));
    FAILS("mesh", xm_layout_create(NULL, &spec, XM_PARTITION_EVEN, shape, &laid));
    FAILS("spec", xm_layout_create(mesh, NULL, XM_PARTITION_EVEN, shape, &laid));
    FAILS("shape", xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, NULL, &laid));
    FAILS("layout", xm_layout_create(mesh, &spec, XM_PARTITION_EVEN, shape, NULL));
    FAILS("mesh", xm_layout_create_explicit(NULL, &spec, shape, cuts, &laid));
    FAILS("spec", xm_layout_create_explicit(mesh, NULL, shape, cuts, &laid));
    FAILS("shape", xm_layout_create_explicit(mesh, &spec, NULL, cuts, &laid));
    FAILS("layout", xm_layout_create_explicit(mesh, &spec, shape, cuts, NULL));
    GIVES(0, "layout", xm_layout_parts(NULL, 0));
    GIVES(NULL, "layout", xm_layout_cuts(NULL, 0));
    GIVES(-1, "layout", xm_layout_tile_of_rank(NULL, 0));
    LEAVES("layout", xm_layout_tile_box(NULL, 0, &box));
    LEAVES("box", xm_layout_tile_box(layout, 0, NULL));
    GIVES(0, "layout", xm_layout_buffer_bytes(NULL, 0, 1));
    xm_layout_destroy(NULL);
}
END_TEST

START_TEST(profile_and_network)
{
    const int host_of_rank[] = {0};
    xm_network_params_t params = XM_NETWORK_PARAMS_INIT;
    xm_cluster_profile_t *loaded;
    xm_network_t *made;

    FAILS("path", xm_cluster_profile_load(NULL, &loaded));
    FAILS("profile", xm_cluster_profile_load("x", NULL));
    FAILS("text", xm_cluster_profile_from_text(NULL, 0, "x", &loaded));
    FAILS("source", xm_cluster_profile_from_text("{}", 2, NULL, &loaded));
    FAILS("profile", xm_cluster_profile_from_text("{}", 2, "x", NULL));
    FAILS("profile", xm_cluster_profile_resize(NULL, 1, 1, &loaded));
    FAILS("resized", xm_cluster_profile_resize(profile, 1, 1, NULL));
    GIVES(0, "profile", xm_cluster_profile_hosts(NULL));
    GIVES(0, "profile", xm_cluster_profile_devices_per_host(NULL));
    xm_cluster_profile_destroy(NULL);
    params.ranks = 1;
    params.nic_bandwidth = params.host_bandwidth = 1;
    FAILS("params", xm_network_create(NULL, &made));
    FAILS("params.host_of_rank", xm_network_create(&params, &made));
    params.host_of_rank = host_of_rank;
    FAILS("network", xm_network_create(&params, NULL));
    FAILS("profile", xm_network_from_profile(NULL, 1, host_of_rank, &made));
    FAILS("host_of_rank", xm_network_from_profile(profile, 1, NULL, &made));
    FAILS("network", xm_network_from_profile(profile, 1, host_of_rank, NULL));
    GIVES(0, "network", xm_network_ranks(NULL));
    GIVES(0, "network", xm_network_hosts(NULL));
    GIVES(-1, "network", xm_network_host_of(NULL, 0));
    xm_network_destroy(NULL);
}
END_TEST

START_TEST(plans)
{
    xm_plan_params_t params = XM_PLAN_PARAMS_INIT;
    xm_plan_without_params_t without = XM_PLAN_WITHOUT_PARAMS_INIT;
    xm_tensor_t tensor = {"t", NULL, layout, 32};
    xm_plan_info_t info = XM_PLAN_INFO_INIT;
    xm_strategy_t strategy;
    xm_scheduler_t scheduler;
    int64_t makespan;
    xm_plan_t *made;
    char *text;

    params.element_size = 4;
    FAILS("params", xm_plan_create(NULL, &made));
    FAILS("params.network", xm_plan_create(&params, &made));
    params.network = network;
    FAILS("params.src", xm_plan_create(&params, &made));
    params.src = layout;
    FAILS("params.dst", xm_plan_create(&params, &made));
    params.dst = layout;
    FAILS("plan", xm_plan_create(&params, NULL));
    params.tensors = &tensor;
    params.tensor_count = 1;
    FAILS("the source layout of a tensor", xm_plan_create(&params, &made));
    tensor = (xm_tensor_t){"t", layout, NULL, 32};
    FAILS("the destination layout of a tensor", xm_plan_create(&params, &made));
    FAILS("plan", xm_plan_get_info(NULL, &info));
    FAILS("info", xm_plan_get_info(plan, NULL));
    FAILS("plan", xm_plan_simulate(NULL, network, XM_SHARING_FAIR, NULL, &makespan));
    FAILS("network", xm_plan_simulate(plan, NULL, XM_SHARING_FAIR, NULL, &makespan));
    FAILS("makespan_ns", xm_plan_simulate(plan, network, XM_SHARING_FAIR, NULL, NULL));
    FAILS("plan", xm_plan_verify(NULL));
    FAILS("plan", xm_plan_to_json(NULL, &text));
    FAILS("text", xm_plan_to_json(plan, NULL));
    FAILS("plan", xm_plan_without(NULL, &without, &made));
    FAILS("params", xm_plan_without(plan, NULL, &made));
    FAILS("rest", xm_plan_without(plan, &without, NULL));
    without.lost_count = 1;
    FAILS("params.lost", xm_plan_without(plan, &without, &made));
    without.lost_count = 0;
    without.delivered_count = 1;
    FAILS("params.delivered", xm_plan_without(plan, &without, &made));
    FAILS("name", xm_strategy_parse(NULL, &strategy));
    FAILS("strategy", xm_strategy_parse("auto", NULL));
    FAILS("name", xm_scheduler_parse(NULL, &scheduler));
    FAILS("scheduler", xm_scheduler_parse("auto", NULL));
    xm_plan_destroy(NULL);
}
END_TEST

START_TEST(the_rest)
{
    xm_network_t *made;
    xm_layout_t *parsed;

    FAILS("shape", xm_layout_parse(NULL, "2", NULL, "S0", XM_PARTITION_EVEN, &parsed));
    FAILS("mesh", xm_layout_parse("8", NULL, NULL, "S0", XM_PARTITION_EVEN, &parsed));
    FAILS("spec", xm_layout_parse("8", "2", NULL, NULL, XM_PARTITION_EVEN, &parsed));
    FAILS("layout", xm_layout_parse("8", "2", NULL, "S0", XM_PARTITION_EVEN, NULL));
    FAILS("params", xm_convert(NULL, XM_CONVERT_NARROW));
    FAILS("worker", xm_network_from_worker(NULL, &made));
    FAILS("network", xm_network_from_worker(worker, NULL));
    FAILS("memory", xm_shared_memory_create(1, NULL));
    GIVES(NULL, "memory", xm_shared_memory_address(NULL));
    xm_shared_memory_destroy(NULL);
    /* These have no pointers. */
    ck_assert_str_eq(xm_version(), XM_VERSION_STRING);
    ck_assert_str_eq(xm_status_string(XM_OK), "ok");
    ck_assert(!xm_status_is_caller(XM_OK));
}
END_TEST

/* Indices that do not exist are answered as the headers say. */
START_TEST(beyond_the_end)
{
    xm_box_t box = {.dims = 7};
    xm_peer_counts_t peer;
    xm_nic_counts_t nic;

    ck_assert_int_eq(xm_mesh_axis_size(mesh, 1), 0);
    ck_assert_int_eq(xm_mesh_rank(mesh, 2), -1);
    ck_assert_int_eq(xm_mesh_rank(mesh, -1), -1);
    ck_assert_int_eq(xm_mesh_position(mesh, 9), -1);
    ck_assert_int_eq(xm_layout_parts(layout, 1), 0);
    ck_assert_ptr_null(xm_layout_cuts(layout, 1));
    xm_layout_tile_box(layout, 2, &box);
    ck_assert_int_eq(box.dims, 0);
    ck_assert_int_eq(xm_network_host_of(network, 2), -1);
    ck_assert_int_eq(xm_worker_host_of(worker, 1), -1);
    ck_assert_ptr_null(xm_worker_host_name(worker, 1));
    ck_assert_int_eq(xm_group_job_rank(worker, 1), -1);
    ck_assert_xm_fails(xm_worker_peer_counts(worker, 1, &peer), XM_ERR_NOT_FOUND, "rank 1");
    ck_assert_xm_fails(xm_worker_nic_counts(worker, 99, &nic), XM_ERR_NOT_FOUND, "number 99");
    ck_assert_xm_ok(xm_worker_peer_counts(worker, 0, &peer));
}
END_TEST

START_TEST(of_meetings)
{
    xm_meeting_params_t params = XM_MEETING_PARAMS_INIT;
    xm_meeting_event_t event = XM_MEETING_EVENT_INIT;
    xm_meeting_t *meeting;
    xm_place_t *place;

    FAILS("address", xm_place_open(NULL, NULL, &place, NULL));
    FAILS("place", xm_place_open("tcp://127.0.0.1:0", NULL, NULL, NULL));
    FAILS("params", xm_meeting_join(NULL, &meeting, NULL));
    FAILS("meeting", xm_meeting_join(&params, NULL, NULL));
    FAILS("meeting", xm_meeting_say(NULL, XM_MEETING_READY, 0, NULL));
    FAILS("meeting", xm_meeting_next(NULL, 0, &event));
    xm_meeting_leave(NULL);
    xm_place_close(NULL);
}
END_TEST

static void read_file(const char *path, char *text, size_t size)
{
    FILE *file = fopen(xm_test_source_path(path), "r");

    text[0] = '\0';
    if (file != NULL) {
        text[fread(text, 1, size - 1, file)] = '\0';
        (void)fclose(file);
    }
}

/* A test that forgets a function is found: this file names all that are exported, but those of
 * reshards and updates, which tests/resharding has. */
START_TEST(nothing_is_forgotten)
{
    static char source[1 << 16], interim[1 << 12];
    char line[128], call[128];
    FILE *map = fopen(xm_test_source_path("cmake/libcrossmesh.map"), "r");

    ck_assert_ptr_nonnull(map);
    read_file("tests/frame/test_null_pointers.c", source, sizeof(source));
    read_file("cmake/libcrossmesh.interim", interim, sizeof(interim));
    while (fgets(line, sizeof(line), map) != NULL) {
        char *name = line + strspn(line, " ");

        name[strcspn(name, ";\n")] = '\0';
        if (strncmp(name, "xm_", 3) == 0 && strncmp(name, "xm_reshard_", 11) != 0 &&
            strncmp(name, "xm_update_", 10) != 0 && strstr(interim, name) == NULL) {
            (void)snprintf(call, sizeof(call), "%s(", name);
            ck_assert_msg(strstr(source, call) != NULL, "nobody calls %s", name);
        }
    }
    (void)fclose(map);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("null_pointers");
    TCase *tcase = tcase_create("all");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, job_and_worker);
    tcase_add_test(tcase, group_message_and_counters);
    tcase_add_test(tcase, mesh_and_layout);
    tcase_add_test(tcase, profile_and_network);
    tcase_add_test(tcase, plans);
    tcase_add_test(tcase, the_rest);
    tcase_add_test(tcase, beyond_the_end);
    tcase_add_test(tcase, of_meetings);
    tcase_add_test(tcase, nothing_is_forgotten);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
