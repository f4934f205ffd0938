/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emulated-cluster: several hosts on one machine, with NICs of limited speed. Commands
 * make a cluster, run programs in it, show it and end it, like `ip netns` with hosts
 * instead of namespaces.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/cluster/emulated_cluster.h"
#include "bench/cluster/nic_rate.h"
#include "cli_support.h"
#include "comm/base.h"

static const char program[] = "emulated-cluster";
static const char default_name[] = "xm";

static int run_up(int argc, char *const *argv);
static int run_down(int argc, char *const *argv);
static int run_exec(int argc, char *const *argv);
static int run_status(int argc, char *const *argv);

static const xm_cli_subcommand_t commands[] = {
    {"up", run_up, "Make a cluster."},
    {"down", run_down, "End a cluster with everything that runs in it."},
    {"exec", run_exec, "Run a command on a host."},
    {"status", run_status, "Show a cluster's hosts, addresses and rates."},
};

/* --- up --------------------------------------------------------------------------------------- */

typedef struct {
    const char *name, *nic, *uneven, *uplink, *congestion;
    int hosts, nics, racks, mtu;
    double core_share;
} up_options_t;

/* Rates of hosts or rates of NICs; the two options exclude each other. */
static xm_status_t read_rates(const up_options_t *options, rb_cluster_shape_t *shape)
{
    int64_t host_rates[RB_CLUSTER_HOSTS], nic_rates[RB_CLUSTER_NICS];
    int host_count = 0, nic_count = 0;

    XM_TRY(
        rb_nic_rate_parse_list("--nic", options->nic, host_rates, RB_CLUSTER_HOSTS, &host_count));
    if (options->uneven != NULL) {
        XM_TRY(rb_nic_rate_parse_list("--uneven", options->uneven, nic_rates, RB_CLUSTER_NICS,
                                      &nic_count));
    }
    if (options->uplink != NULL) {
        XM_TRY(rb_nic_rate_parse("--uplink", options->uplink, &shape->uplink));
    }
    if (nic_count > 0 && options->nics > 0 && options->nics != nic_count) {
        return XM_INVALID("--uneven has the rates of %d NICs, but --nics-per-host says %d",
                          nic_count, options->nics);
    }
    shape->nics = nic_count > 0 ? nic_count : options->nics > 0 ? options->nics : 1;
    rb_cluster_shape_set_rates(shape, host_rates, host_count, nic_rates, nic_count);
    return XM_OK;
}

/* Contradictions are refused before the shape is checked as a whole. */
static xm_status_t make_shape(const xm_cli_t *cli, const up_options_t *options,
                              rb_cluster_shape_t *shape)
{
    *shape = (rb_cluster_shape_t){.hosts = options->hosts,
                                  .racks = options->racks > 0 ? options->racks : 1,
                                  .mtu = options->mtu,
                                  .core_share = options->core_share,
                                  .congestion = options->congestion};
    if (xm_cli_given(cli, "nic") && options->uneven != NULL) {
        return XM_INVALID("--nic and --uneven both say how fast the NICs are; give one");
    }
    if ((options->racks > 0) != (options->uplink != NULL)) {
        return XM_INVALID("--%s is given but --%s is not", options->racks > 0 ? "racks" : "uplink",
                          options->racks > 0 ? "uplink" : "racks");
    }
    XM_TRY(rb_cluster_name_check(options->name));
    (void)snprintf(shape->name, sizeof(shape->name), "%s", options->name);
    XM_TRY(read_rates(options, shape));
    return rb_cluster_shape_check(shape);
}

/* The cluster's object is destroyed at once: a lasting cluster stays. */
static xm_status_t up(const xm_cli_t *cli, void *options)
{
    rb_emulated_cluster_params_t params = {.lasting = true};
    rb_emulated_cluster_t *cluster = NULL;
    rb_cluster_shape_t shape;
    xm_status_t status = make_shape(cli, options, &shape);

    if (status == XM_OK) {
        rb_cluster_shape_warn(&shape, program);
        params.shape = &shape;
        status = rb_emulated_cluster_create(&params, &cluster);
    }
    rb_emulated_cluster_destroy(cluster);
    return status;
}

static int run_up(int argc, char *const *argv)
{
    up_options_t o = {.name = default_name, .nic = "1gbit", .hosts = 2, .mtu = 1500};
    const xm_cli_option_t table[] = {
        {"name", 0, XM_CLI_STRING, &o.name, "NAME", 0, 0,
         "Name of the cluster; its hosts are NAME0, NAME1, … (default xm)."},
        {"hosts", 0, XM_CLI_INT, &o.hosts, "H", 1, RB_CLUSTER_HOSTS, "Hosts (default 2)."},
        {"nic", 0, XM_CLI_STRING, &o.nic, "RATE[,RATE...]", 0, 0,
         "Rate of every NIC per direction, such as 1gbit or 500mbit; several: of the hosts in turn "
         "(default 1gbit)."},
        {"nics-per-host", 0, XM_CLI_INT, &o.nics, "N", 1, RB_CLUSTER_NICS,
         "NICs of each host (default 1)."},
        {"uneven", 0, XM_CLI_STRING, &o.uneven, "RATE,RATE...", 0, 0,
         "Rates of a host's NICs in turn, instead of --nic."},
        {"racks", 0, XM_CLI_INT, &o.racks, "R", 1, RB_CLUSTER_HOSTS,
         "Racks, of equally many neighbouring hosts; needs --uplink."},
        {"uplink", 0, XM_CLI_STRING, &o.uplink, "RATE", 0, 0,
         "Rate of a rack's uplink per direction; needs --racks."},
        {"mtu", 0, XM_CLI_INT, &o.mtu, "BYTES", 576, 65521, "MTU of the NICs (default 1500)."},
        {"core-share", 0, XM_CLI_DOUBLE, &o.core_share, "S", 0.01, 1,
         "Part of a core that each command on a host has (default: no limit)."},
        {"congestion", 0, XM_CLI_STRING, &o.congestion, "NAME", 0, 0,
         "TCP's congestion control in the hosts, e.g. reno (default: the machine's)."},
    };
    xm_cli_command_t command = XM_CLI_COMMAND(
        "emulated-cluster up", NULL, "Makes a cluster, which stays until 'emulated-cluster down'.",
        "emulated-cluster up --hosts 4 --nic 1gbit", table, 0, 0);

    return xm_cli_main(&command, argc, argv, up, &o);
}

/* --- down, status ------------------------------------------------------------------------------
 */

static xm_status_t down(const xm_cli_t *cli, void *options)
{
    const char **name = options;
    rb_emulated_cluster_t *cluster = NULL;
    xm_status_t status = rb_emulated_cluster_open(*name, &cluster);

    (void)cli;
    XM_THEN(status, rb_emulated_cluster_end(cluster));
    rb_emulated_cluster_destroy(cluster);
    return status;
}

static int run_down(int argc, char *const *argv)
{
    const char *name = default_name;
    const xm_cli_option_t table[] = {
        {"name", 0, XM_CLI_STRING, &name, "NAME", 0, 0, "Name of the cluster (default xm)."}};
    xm_cli_command_t command = XM_CLI_COMMAND(
        "emulated-cluster down", NULL,
        "Ends a cluster with everything that runs in it, and waits until it is gone.",
        "emulated-cluster down", table, 0, 0);

    return xm_cli_main(&command, argc, argv, down, &name);
}

/* One line a host, with what a user would type: addresses and rates. */
static void print_status(const rb_emulated_cluster_t *cluster)
{
    const rb_cluster_members_t *members = rb_emulated_cluster_members(cluster);
    const rb_cluster_shape_t *shape = &members->shape;
    char address[32], rate[32];

    (void)printf("# cluster %s: %d hosts, MTU %d, holder pid %d", shape->name, shape->hosts,
                 shape->mtu, (int)members->holder);
    if (shape->racks > 1) {
        (void)printf(", %d racks, uplinks %s", shape->racks,
                     rb_nic_rate_format(shape->uplink, rate, sizeof(rate)));
    }
    if (shape->core_share > 0) {
        (void)printf(", %g of a core for each command", shape->core_share);
    }
    (void)putchar('\n');
    for (int h = 0; h < shape->hosts; ++h) {
        (void)printf("%s%d  pid %d", shape->name, h, (int)members->init[h]);
        for (int i = 0; i < shape->nics; ++i) {
            (void)printf("  nic%d %s %s", i,
                         rb_cluster_shape_address(h, i, address, sizeof(address)),
                         rb_nic_rate_format(shape->rate[h][i], rate, sizeof(rate)));
        }
        (void)printf("%s\n", rb_emulated_cluster_host_lives(cluster, h) ? "" : "  (has ended)");
    }
}

/* The same document that the cluster's file holds. */
static xm_status_t print_json(const rb_emulated_cluster_t *cluster)
{
    char *text = rb_cluster_state_dump(rb_emulated_cluster_members(cluster));

    XM_NEED_MEMORY(text, "the description of the cluster");
    (void)puts(text);
    free(text);
    return XM_OK;
}

typedef struct {
    const char *name;
    bool json;
} status_options_t;

static xm_status_t show(const xm_cli_t *cli, void *options)
{
    const status_options_t *o = options;
    rb_emulated_cluster_t *cluster = NULL;
    xm_status_t status = rb_emulated_cluster_open(o->name, &cluster);

    (void)cli;
    if (status == XM_OK && o->json) {
        status = print_json(cluster);
    } else if (status == XM_OK) {
        print_status(cluster);
    }
    rb_emulated_cluster_destroy(cluster);
    return status == XM_OK ? xm_cli_flush() : status;
}

static int run_status(int argc, char *const *argv)
{
    status_options_t o = {.name = default_name};
    const xm_cli_option_t table[] = {
        {"name", 0, XM_CLI_STRING, &o.name, "NAME", 0, 0, "Name of the cluster (default xm)."},
        {"json", 0, XM_CLI_FLAG, &o.json, NULL, 0, 0, "Print one JSON document instead."}};
    xm_cli_command_t command = XM_CLI_COMMAND("emulated-cluster status", NULL,
                                              "Shows a cluster's hosts, addresses and rates.",
                                              "emulated-cluster status", table, 0, 0);

    return xm_cli_main(&command, argc, argv, show, &o);
}

/* --- exec --------------------------------------------------------------------------------------
 */

/* Finds where the options of `exec` end and HOST stands; all words behind it belong to
 * the command. */
static int find_host(int argc, char *const *argv)
{
    int i = 1;

    while (i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0) {
        i += strcmp(argv[i], "--name") == 0 ? 2 : 1;
    }
    return i < argc && strcmp(argv[i], "--") == 0 ? i + 1 : i;
}

/* Joins the words with a blank between them, as ssh hands them to a shell. */
static char *join_words(char *const *words)
{
    size_t length = 1;
    char *text, *end;

    for (int i = 0; words[i] != NULL; ++i) {
        length += strlen(words[i]) + 1;
    }
    text = malloc(length);
    end = text;
    for (int i = 0; text != NULL && words[i] != NULL; ++i) {
        end = stpcpy(end, i > 0 ? " " : "");
        end = stpcpy(end, words[i]);
    }
    return text;
}

/* Sets what a program on the host cannot find out by itself: the folder of cluster files
 * and the NICs' rates. */
static xm_status_t set_variables(const rb_cluster_shape_t *shape, int host)
{
    char text[512], folder[PATH_MAX];
    XM_TRY(rb_cluster_state_folder(folder, sizeof(folder)));

    if (setenv(RB_CLUSTER_STATE_DIR, folder, 1) != 0 ||
        (host != RB_EMULATED_HEAD &&
         setenv("XM_NICS", rb_cluster_shape_nics(shape, host, 0, 1, text, sizeof(text)), 1) != 0)) {
        return xm_error_set(XM_ERR_NO_MEMORY, "cannot set XM_NICS: %s", strerror(errno));
    }
    return XM_OK;
}

/* Runs the command in place of this process; it returns only on failure. */
static xm_status_t become(char *const *words, bool by_shell)
{
    const char *file = by_shell ? "/bin/sh" : words[0];
    char *line = by_shell ? join_words(words) : NULL;

    if (line != NULL) {
        (void)execl(file, "sh", "-c", line, (char *)NULL);
    } else if (!by_shell) {
        (void)execvp(file, words);
    }
    (void)XM_NOT_FOUND("cannot run %s: %s", file, strerror(errno));
    free(line);
    return XM_ERR_NOT_FOUND;
}

/* The process enters the host before it becomes the command, so the command sees nothing
 * else. */
static xm_status_t execute(const char *name, const char *where, char *const *words)
{
    rb_emulated_cluster_t *cluster;
    const rb_cluster_shape_t *shape;
    bool head = strcmp(where, "head") == 0;
    int host = RB_EMULATED_HEAD;
    xm_status_t status = XM_OK;

    XM_TRY(rb_emulated_cluster_open(name, &cluster));
    shape = &rb_emulated_cluster_members(cluster)->shape;
    if (!head) {
        host = rb_cluster_shape_find(shape, where);
    }
    if (!head && host < 0) {
        status = XM_NOT_FOUND("'%s' is no host of the cluster '%s', which has %s0 … %s%d and head",
                              where, name, name, name, shape->hosts - 1);
    }
    XM_THEN(status, set_variables(shape, host));
    XM_THEN(status, rb_emulated_cluster_enter(cluster, host));
    if (status == XM_OK) {
        /* A name stands where a launcher would have ssh go, so the words are for a shell. */
        status = become(words, !head && strspn(where, "0123456789") != strlen(where));
    }
    rb_emulated_cluster_destroy(cluster);
    return status;
}

/* The parser sees the words before HOST only, so the command's own options stay the
 * command's. */
static int run_exec(int argc, char *const *argv)
{
    const char *name = default_name;
    const xm_cli_option_t table[] = {
        {"name", 0, XM_CLI_STRING, &name, "NAME", 0, 0, "Name of the cluster (default xm)."}};
    xm_cli_command_t command = XM_CLI_COMMAND(
        "emulated-cluster exec", "HOST COMMAND [ARGUMENT...]",
        "Runs a command on a host, in the same working directory, and ends as the command does. "
        "HOST is the number of a host, the name of a host (then the words are given to a shell, "
        "as ssh does), or head: the machine itself, but in the cluster's network.",
        "emulated-cluster exec 0 ip address", table, 0, 0);
    int host = find_host(argc, argv);
    xm_cli_t *cli;
    xm_status_t status = xm_cli_parse(&command, host < argc ? host : argc, argv, &cli);

    if (status < 0) {
        return xm_cli_fail(program, status);
    }
    if (!xm_cli_finished(cli)) {
        status =
            host + 1 < argc
                ? execute(name, argv[host], argv + host + 1)
                : XM_INVALID("exec: a host and a command are needed, such as 'exec 0 hostname'");
    }
    xm_cli_destroy(cli);
    return status < 0 ? xm_cli_fail(program, status) : EXIT_SUCCESS;
}

/* --- The command -------------------------------------------------------------------------------
 */

int main(int argc, char **argv)
{
    return xm_cli_dispatch(
        program,
        "Makes several hosts on this machine that share nothing but NICs of limited speed.",
        commands, sizeof(commands) / sizeof(commands[0]), NULL, argc, argv);
}
