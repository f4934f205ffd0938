/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated cluster from C: processes move into hosts, and UCX finds there what it would find on
 * machines. */
#include "bench/cluster/emulated_cluster.h"

#include <crossmesh/reshard.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/job/launcher.h"
#include "comm/transport/ucx/ucx.h"
#include "comm/worker/worker.h"
#include "resharding/network.h"
#include "tests/comm/job/local_job.h"
#include "xm_test.h"

enum { LIMIT_S = 60, SKIPPED = 77, RANKS_PER_HOST = 2, PORT = 29500 };

static const char *program;

static xm_status_t create_with(int hosts, int nics, rb_emulated_cluster_t **cluster)
{
    static const int64_t rate = 500000000;
    rb_emulated_cluster_params_t params = {0};
    rb_cluster_shape_t shape = {
        .name = "test", .hosts = hosts, .nics = nics, .racks = 1, .mtu = 1500};

    rb_cluster_shape_set_rates(&shape, &rate, 1, NULL, 0);
    params.shape = &shape;
    return rb_emulated_cluster_create(&params, cluster);
}

static xm_status_t create(int hosts, rb_emulated_cluster_t **cluster)
{
    return create_with(hosts, 1, cluster);
}

/* Forks a process into a host, which does `inside` there; returns how it ended. */
static int run_inside(const rb_emulated_cluster_t *cluster, int host, void (*inside)(void))
{
    int wait_status = -1;
    pid_t child = fork();

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        if (rb_emulated_cluster_enter(cluster, host) < 0) {
            _exit(100);
        }
        inside();
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &wait_status, 0), child);
    return wait_status;
}

static void exit_with_name(void)
{
    char name[64] = "";

    (void)gethostname(name, sizeof(name) - 1);
    _exit(strcmp(name, "test1") == 0 && getppid() == 0 ? 42 : 1);
}

static void kill_oneself(void)
{
    (void)raise(SIGKILL);
}

static void exit_with_head(void)
{
    char name[64] = "";

    (void)gethostname(name, sizeof(name) - 1);
    _exit(strcmp(name, "test-head") == 0 && getppid() != 0 ? 43 : 1);
}

START_TEST(processes_enter_hosts)
{
    rb_emulated_cluster_t *cluster;
    char address[32];
    pid_t holder;
    int ended;

    ck_assert_xm_ok(create(2, &cluster));
    ended = run_inside(cluster, 1, exit_with_name);
    ck_assert(WIFEXITED(ended) && WEXITSTATUS(ended) == 42);
    ended = run_inside(cluster, 0, kill_oneself);
    ck_assert(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
    ended = run_inside(cluster, RB_EMULATED_HEAD, exit_with_head);
    ck_assert(WIFEXITED(ended) && WEXITSTATUS(ended) == 43);
    ck_assert_str_eq(rb_emulated_cluster_address(cluster, 1, 0, address, sizeof(address)),
                     "10.77.0.2");
    ck_assert(rb_emulated_cluster_host_lives(cluster, 1));
    holder = rb_emulated_cluster_members(cluster)->holder;
    ck_assert_xm_ok(rb_emulated_cluster_end(cluster));
    ck_assert(!rb_emulated_cluster_host_lives(cluster, 1));
    ck_assert_int_ne(kill(holder, 0), 0);
    ended = run_inside(cluster, 1, exit_with_name);
    ck_assert(WIFEXITED(ended) && WEXITSTATUS(ended) == 100);
    rb_emulated_cluster_destroy(cluster);
    rb_emulated_cluster_destroy(NULL);
}
END_TEST

START_TEST(bad_parameters_are_refused)
{
    rb_emulated_cluster_params_t params = {0};
    rb_emulated_cluster_t *cluster = NULL;

    ck_assert_xm_fails(rb_emulated_cluster_create(&params, &cluster), XM_ERR_INVALID_ARGUMENT,
                       "no shape");
    ck_assert_xm_fails(create(0, &cluster), XM_ERR_INVALID_ARGUMENT, "0 hosts");
    ck_assert_ptr_null(cluster);
}
END_TEST

static xm_status_t enter(void *arg, int rank)
{
    return rb_emulated_cluster_enter(arg, rank / RANKS_PER_HOST);
}

/* What a rank sees: its hosts by their names, shared memory inside, TCP over the NIC between. */
static int be_rank(void)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    xm_job_env_t env;
    char lanes[256];
    int rank;

    local_expect_ok(xm_job_env_read(&env));
    local_expect_ok(xm_worker_create(&env, &params, &worker));
    rank = xm_worker_rank(worker);
    local_expect(xm_worker_host_count(worker) == 2, "%d hosts", xm_worker_host_count(worker));
    local_expect(strcmp(xm_worker_host_name(worker, 1), "test1") == 0, "host 1 is %s",
                 xm_worker_host_name(worker, 1));
    for (int peer = 0; peer < xm_worker_size(worker); ++peer) {
        bool near = xm_worker_host_of(worker, peer) == xm_worker_host_of(worker, rank);

        local_expect(xm_worker_host_of(worker, peer) == peer / RANKS_PER_HOST, "rank %d is on %d",
                     peer, xm_worker_host_of(worker, peer));
        if (peer == rank) {
            continue;
        }
        local_expect_ok(
            xm_transport_ucx_lanes(xm_worker_transport(worker), peer, lanes, sizeof(lanes)));
        local_expect((strstr(lanes, "tcp/nic0") == NULL) == near &&
                         (strstr(lanes, "memory") != NULL) == near && strstr(lanes, "lo") == NULL,
                     "rank %d reaches rank %d by '%s'", rank, peer, lanes);
    }
    local_expect_ok(xm_worker_barrier(worker));
    xm_worker_destroy(worker, NULL);
    return 0;
}

START_TEST(ucx_finds_memory_inside_and_nics_between)
{
    char role[] = "rank", *argv[] = {(char *)program, role, NULL};
    xm_launch_params_t params = XM_LAUNCH_PARAMS_INIT;
    rb_emulated_cluster_t *cluster;
    int exit_code = -1;

    ck_assert_xm_ok(create(2, &cluster));
    params.ranks = 2 * RANKS_PER_HOST;
    params.argv = argv;
    params.enter = enter;
    params.arg = cluster;
    params.master_addr = "10.77.0.1";
    params.master_port = PORT;
    ck_assert_xm_ok(xm_launch(&params, &exit_code));
    ck_assert_int_eq(exit_code, 0);
    rb_emulated_cluster_destroy(cluster);
}
END_TEST

/* Bytes that an interface of this host has sent. */
static double bytes_sent(const char *interface)
{
    FILE *file = fopen("/proc/net/dev", "r");
    char line[512];
    double sent = -1;

    local_expect(file != NULL, "no /proc/net/dev");
    while (fgets(line, sizeof(line), file) != NULL) {
        char *name = line + strspn(line, " "), *colon = strchr(name, ':'), *at;

        if (colon == NULL || (size_t)(colon - name) != strlen(interface) ||
            strncmp(name, interface, strlen(interface)) != 0) {
            continue;
        }
        /* Eight numbers of what came in stand before those of what went out. */
        at = colon + 1;
        for (int column = 0; column < 8; ++column) {
            (void)strtod(at, &at);
        }
        sent = strtod(at, NULL);
    }
    (void)fclose(file);
    return sent;
}

static void count_end(xm_op_t *op, xm_status_t status)
{
    local_expect_ok(status);
    ++*(int *)op->arg;
}

enum { BIG_BYTES = 2 << 20 };

/* Rank 0 sends to rank 2, on the other host. */
static void move_bytes(xm_worker_t *worker)
{
    xm_transport_t *transport = xm_worker_transport(worker);
    int rank = xm_worker_rank(worker), ended = 0;
    uint32_t *data = calloc(BIG_BYTES / sizeof(*data), sizeof(*data));
    xm_op_t op = {.done = count_end, .arg = &ended};
    xm_status_t status;

    local_expect(data != NULL, "no memory");
    for (uint32_t i = 0; rank == 0 && i < BIG_BYTES / sizeof(*data); ++i) {
        data[i] = i * 2654435761U;
    }
    status = rank == 0 ? xm_transport_send(transport, 2, 5, data, BIG_BYTES, NULL, &op)
                       : xm_transport_receive(transport, 0, 5, data, BIG_BYTES, NULL, &op);
    local_expect(status >= 0, "%s", xm_last_error());
    ended += status == XM_OK;
    while (ended == 0) {
        local_expect_ok(xm_worker_wait(worker, xm_worker_deadline(worker)));
    }
    for (uint32_t i = 0; i < BIG_BYTES / sizeof(*data); ++i) {
        local_expect(data[i] == i * 2654435761U, "word %u is %u", i, data[i]);
    }
    free(data);
}

/* What a rank sees that has two NICs and names none: both are used, each with that of its subnet,
 * though the hosts list them in another order. */
static int be_chooser(void)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    xm_job_env_t env;
    char lanes[256];
    int rank;

    local_expect_ok(xm_job_env_read(&env));
    local_expect_ok(xm_worker_create(&env, &params, &worker));
    rank = xm_worker_rank(worker);
    for (int peer = 0; peer < xm_worker_size(worker); ++peer) {
        if (xm_worker_host_of(worker, peer) == xm_worker_host_of(worker, rank)) {
            continue;
        }
        local_expect_ok(
            xm_transport_ucx_lanes(xm_worker_transport(worker), peer, lanes, sizeof(lanes)));
        local_expect(strcmp(lanes, "tcp/nic0 + tcp/nic1") == 0 ||
                         strcmp(lanes, "tcp/nic1 + tcp/nic0") == 0,
                     "rank %d reaches rank %d by '%s'", rank, peer, lanes);
    }
    if (rank % RANKS_PER_HOST == 0) {
        move_bytes(worker);
    }
    local_expect_ok(xm_worker_barrier(worker));
    if (rank == 0) {
        local_expect(bytes_sent("nic0") > 0.4 * BIG_BYTES && bytes_sent("nic1") > 0.4 * BIG_BYTES,
                     "%.0f and %.0f bytes over the two NICs", bytes_sent("nic0"),
                     bytes_sent("nic1"));
    }
    xm_worker_destroy(worker, NULL);
    return 0;
}

/* All but one of the NICs are left out. */
static int be_avoider(void)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    xm_job_env_t env;
    char lanes[256];

    local_expect_ok(xm_job_env_read(&env));
    local_expect_ok(xm_worker_create(&env, &params, &worker));
    local_expect_ok(xm_transport_ucx_lanes(
        xm_worker_transport(worker), (env.rank + RANKS_PER_HOST) % env.size, lanes, sizeof(lanes)));
    local_expect(strcmp(lanes, "tcp/nic1") == 0, "rank %d reaches the others by '%s'", env.rank,
                 lanes);
    local_expect_ok(xm_worker_barrier(worker));
    xm_worker_destroy(worker, NULL);
    return 0;
}

/* All are. */
static int be_refused(void)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker;
    xm_job_env_t env;

    local_expect_ok(xm_job_env_read(&env));
    local_expect(xm_worker_create(&env, &params, &worker) < 0, "a worker without NICs");
    local_expect(strstr(xm_last_error(), "XM_NICS=^nic0,nic1 cannot be kept: no network is known "
                                         "to reach all hosts") != NULL,
                 "%s", xm_last_error());
    return 0;
}

/* NICs of the ranks: two of one, one of the other; a NIC each; two that overlap in part; one that
 * UCX chooses. The second host's NICs have half the rate of the first one's. */
typedef struct {
    const char *nics[2 * RANKS_PER_HOST];
    int rails, rail[2 * RANKS_PER_HOST];
    double rate[2 * RANKS_PER_HOST]; /* bytes/s of the rank's rail */
} rails_row_t;

static const rails_row_t rails_rows[] = {
    {{"nic0=800000000", "nic1=400000000", "nic1=200000000", "nic0=200000000"},
     4,
     {0, 1, 2, 3},
     {100e6, 50e6, 25e6, 25e6}},
    {{"nic0=800000000,nic1=800000000", "nic1=800000000", "nic1=80000000", "nic1=80000000"},
     2,
     {0, 0, 1, 1},
     {200e6, 200e6, 10e6, 10e6}},
};

/* The network to plan for has the rails that the ranks use. */
static int be_railer(const rails_row_t *row)
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_network_t *network;
    xm_worker_t *worker;
    xm_job_env_t env;

    local_expect_ok(xm_job_env_read(&env));
    local_expect_ok(xm_worker_create(&env, &params, &worker));
    local_expect_ok(xm_network_from_worker(worker, &network));
    local_expect(xm_network_rails(network) == row->rails, "%d rails", xm_network_rails(network));
    for (int r = 0; r < 2 * RANKS_PER_HOST; ++r) {
        int rail = xm_network_rail_of(network, r);
        double egress = xm_network_rail_egress(network, rail);

        local_expect(rail == row->rail[r] && egress > 0.999 * row->rate[r] &&
                         egress < 1.001 * row->rate[r],
                     "rank %d has rail %d of %g bytes/s", r, rail, egress);
    }
    xm_network_destroy(network);
    local_expect_ok(xm_worker_barrier(worker));
    xm_worker_destroy(worker, NULL);
    return 0;
}

static char log_path[] = "/tmp/xm-chooser-XXXXXX";

static const char *const *chooser_variables(void *arg, int rank)
{
    static char topology[4200], log_file[64];
    static const char *const variables[] = {topology, log_file, "XM_LOG=info", NULL};

    (void)arg;
    (void)snprintf(topology, sizeof(topology), "XM_TOPOLOGY=%s",
                   xm_test_source_path(rank < RANKS_PER_HOST
                                           ? "tests/fixtures/hwloc/own/emulated-host.xml"
                                           : "tests/fixtures/hwloc/own/emulated-host-turned.xml"));
    (void)snprintf(log_file, sizeof(log_file), "XM_LOG_FILE=%s", log_path);
    return variables;
}

static int count_in_log(const char *text)
{
    FILE *file = fopen(log_path, "r");
    char line[4096];
    int count = 0;

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        count += strstr(line, text) != NULL;
    }
    (void)fclose(file);
    return count;
}

/* What is handed to the launcher's hooks. */
typedef struct {
    rb_emulated_cluster_t *cluster;
    const rails_row_t *row; /* NULL: no rank is told its NICs */
} scene_t;

static xm_status_t enter_scene(void *arg, int rank)
{
    return enter(((scene_t *)arg)->cluster, rank);
}

static const char *const *scene_variables(void *arg, int rank)
{
    static char nics[128];
    static const char *const variables[] = {nics, NULL};
    const scene_t *scene = arg;

    if (scene->row == NULL) {
        return chooser_variables(arg, rank);
    }
    (void)snprintf(nics, sizeof(nics), "XM_NICS=%s", scene->row->nics[rank]);
    return variables;
}

/* Runs ranks of a role on two emulated hosts with two NICs each; returns the exit code. */
static int run_scene(char *role, const rails_row_t *row)
{
    char *argv[] = {(char *)program, role, NULL};
    xm_launch_params_t params = XM_LAUNCH_PARAMS_INIT;
    scene_t scene = {.row = row};
    int exit_code = -1, log = mkstemp(log_path);

    ck_assert_int_ge(log, 0);
    (void)close(log);
    ck_assert_xm_ok(create_with(2, 2, &scene.cluster));
    params.ranks = 2 * RANKS_PER_HOST;
    params.argv = argv;
    params.enter = enter_scene;
    params.variables = scene_variables;
    params.arg = &scene;
    params.master_addr = "10.77.0.1";
    params.master_port = PORT;
    ck_assert_xm_ok(xm_launch(&params, &exit_code));
    rb_emulated_cluster_destroy(scene.cluster);
    return exit_code;
}

static int run_choosers(char *role)
{
    return run_scene(role, NULL);
}

START_TEST(the_network_has_the_rails_that_ranks_use)
{
    char role[] = "railer0";

    role[6] = (char)('0' + _i);
    ck_assert_int_eq(run_scene(role, &rails_rows[_i]), 0);
    ck_assert_int_eq(unlink(log_path), 0);
}
END_TEST

START_TEST(workers_choose_their_nics)
{
    char role[] = "chooser";

    ck_assert_int_eq(run_choosers(role), 0);
    /* The table of rank 0's host, once. */
    ck_assert_int_eq(count_in_log("NIC choice: 2 of 3 NICs suitable, IP"), 1);
    ck_assert_int_eq(count_in_log("NICs of rank 0: nic"), 1);
    ck_assert_int_eq(count_in_log("eth9  UCX cannot use it"), 1);
    ck_assert_int_eq(unlink(log_path), 0);
}
END_TEST

START_TEST(workers_keep_clear_of_a_nic)
{
    char role[] = "avoider";

    (void)setenv("XM_NICS", "^nic0", 1);
    ck_assert_int_eq(run_choosers(role), 0);
    ck_assert_int_eq(count_in_log("nic0  XM_NICS leaves it out"), 1);
    ck_assert_int_eq(count_in_log("NICs of rank 0: nic1=500000000"), 1);
    ck_assert_int_eq(unlink(log_path), 0);
}
END_TEST

START_TEST(what_is_left_out_stays_out)
{
    char role[] = "refused";

    (void)setenv("XM_NICS", "^nic0,nic1", 1);
    ck_assert_int_eq(run_choosers(role), 0);
    ck_assert_int_eq(unlink(log_path), 0);
}
END_TEST

/* False, with the reason printed, where this machine allows no cluster. */
static bool is_possible(void)
{
    rb_emulated_cluster_t *cluster;
    xm_status_t status = create(1, &cluster);

    if (status == XM_ERR_UNSUPPORTED) {
        (void)printf("skipped: %s\n", xm_last_error());
        return false;
    }
    if (status == XM_OK) {
        rb_emulated_cluster_destroy(cluster);
    }
    return true;
}

static int be_role(const char *role)
{
    if (strcmp(role, "chooser") == 0) {
        return be_chooser();
    }
    if (strncmp(role, "railer", 6) == 0) {
        return be_railer(&rails_rows[role[6] - '0']);
    }
    if (strcmp(role, "avoider") == 0) {
        return be_avoider();
    }
    return strcmp(role, "refused") == 0 ? be_refused() : be_rank();
}

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *tcase;

    program = argv[0];
    if (argc == 2) {
        return be_role(argv[1]);
    }
    if (!is_possible()) {
        return SKIPPED;
    }
    suite = suite_create("emulated_cluster");
    tcase = tcase_create("cluster");
    tcase_set_timeout(tcase, LIMIT_S);
    tcase_add_test(tcase, processes_enter_hosts);
    tcase_add_test(tcase, bad_parameters_are_refused);
    tcase_add_test(tcase, ucx_finds_memory_inside_and_nics_between);
    tcase_add_loop_test(tcase, the_network_has_the_rails_that_ranks_use, 0,
                        sizeof(rails_rows) / sizeof(rails_rows[0]));
    tcase_add_test(tcase, workers_choose_their_nics);
    tcase_add_test(tcase, workers_keep_clear_of_a_nic);
    tcase_add_test(tcase, what_is_left_out_stays_out);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
