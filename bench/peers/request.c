/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: the methods first, then reshard-bench's options, by its own parser.
 * Options without a meaning here are refused rather than ignored, or results would be
 * compared that are not alike.
 */
#include "bench/peers/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include <crossmesh/version.h>

static const char help[] =
    "Usage: mpirun … reshard-peer-mpi METHOD[,METHOD…] CASE… [OPTION…]\n"
    "Reshards as users of MPI do, checks every byte and times it, to be compared with\n"
    "reshard-bench.\n"
    "\n"
    "Methods:\n"
    "  alltoallw   one MPI_Alltoallw of subarrays\n"
    "  isend       MPI_Isend and MPI_Irecv of a subarray each, all posted at once\n"
    "  bcast       one MPI_Bcast a slice\n"
    "  all         all of them in turn\n"
    "\n"
    "Options as of reshard-bench:\n"
    "  --suite, --case, --scale, --src-mesh, --dst-mesh, --src-ranks, --dst-ranks, --src-spec,\n"
    "  --dst-spec, --shape, --dtype, --partition, --plan, --boundary   what is moved\n"
    "  --ranks-per-host    place the case as if hosts had so many ranks (ranks on one machine)\n"
    "  -w, -i, --protocol, --validate, --no-validate, --seed           how it is measured\n"
    "  --json, -J FILE                     the JSON document, printed or to a file\n"
    "  --csv                               the table as CSV, and nothing else\n"
    "\n"
    "Example:\n"
    "  mpirun -n 4 reshard-peer-mpi all --ranks-per-host 1 --case nm1 --scale 1/256\n";

/* The options that reshard-bench has and that mean nothing here. */
static const char *const refused[] = {
    "ranks",       "hosts",     "list",          "model-config", "system-config", "transport",
    "shard-table", "strategy",  "scheduler",     "nic-gbps",     "racks",         "uplink-gbps",
    "profile",     "topology",  "verify",        "dry-run",      "memory-limit",  "trace",
    "plot",        "dump-plan", "show-topology",
};

/* `all` adds every method; a name that is given twice runs twice. */
static xm_status_t add_method(rb_peer_request_t *request, const char *name)
{
    static const rb_peer_method_t *const methods[] = {&rb_peer_alltoallw, &rb_peer_isend,
                                                      &rb_peer_bcast};
    const char *names[RB_PEER_METHODS + 1] = {"all"}, *nearest;
    size_t count = 1;
    bool found = false;

    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); ++m) {
        names[count++] = methods[m]->name;
        if (strcmp(name, "all") != 0 && strcmp(name, methods[m]->name) != 0) {
            continue;
        }
        if (request->method_count == RB_PEER_METHODS) {
            return XM_INVALID("more than %d methods", RB_PEER_METHODS);
        }
        request->methods[request->method_count++] = methods[m];
        found = true;
    }
    if (found) {
        return XM_OK;
    }
    nearest = xm_text_nearest(name, names, count);
    return nearest != NULL
               ? XM_INVALID("method '%s' is unknown; did you mean '%s'?", name, nearest)
               : XM_INVALID("method '%s' is not one of alltoallw, isend, bcast, all", name);
}

static xm_status_t parse_methods(const char *list, rb_peer_request_t *request)
{
    xm_status_t status = XM_OK;

    while (status == XM_OK && list != NULL) {
        char name[32];

        (void)xm_text_word(&list, ',', name, sizeof(name));
        status = add_method(request, name);
    }
    return status;
}

static xm_status_t check_options(const rb_options_t *options)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); ++i) {
        if (xm_cli_given(options->cli, refused[i])) {
            return XM_INVALID("--%s is an option of reshard-bench that a peer has no use for",
                              refused[i]);
        }
    }
    return XM_OK;
}

/* Parses the options behind the methods: the parser of reshard-bench sees its own options
 * only. */
static xm_status_t parse_options(int argc, char **argv, rb_peer_request_t *request)
{
    int used = 0;
    xm_status_t status;

    request->arguments = malloc((size_t)argc * sizeof(*request->arguments));
    XM_NEED_MEMORY(request->arguments, "%d arguments", argc);
    request->arguments[used++] = argv[0];
    for (int i = 2; i < argc; ++i) {
        request->arguments[used++] = argv[i];
    }
    request->arguments[used] = NULL;
    status = rb_options_parse(used, request->arguments, &request->options);
    XM_THEN(status, check_options(&request->options));
    /* Reports show the whole command line. */
    request->options.argc = argc;
    request->options.argv = argv;
    return status;
}

/* Only one rank prints the help; all of them end. */
xm_status_t rb_peer_request_parse(int argc, char **argv, bool speaks, rb_peer_request_t *request)
{
    xm_status_t status;

    *request = (rb_peer_request_t){0};
    if (argc < 2) {
        return XM_INVALID(
            "no method is given: alltoallw, isend, bcast, several of them with commas, or all");
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "--version") == 0) {
        if (speaks) {
            (void)fputs(argv[1][2] == 'v' ? "reshard-peer-mpi " XM_VERSION_STRING "\n" : help,
                        stdout);
        }
        request->finished = true;
        return speaks ? xm_cli_flush() : XM_OK;
    }
    status = parse_methods(argv[1], request);
    XM_THEN(status, parse_options(argc, argv, request));
    if (status == XM_OK && speaks) { /* the others write nothing */
        status = xm_file_check_output("--json-file", request->options.json.file);
    }
    if (status < 0) {
        rb_peer_request_clear(request);
    }
    return status;
}

void rb_peer_request_clear(rb_peer_request_t *request)
{
    rb_options_clear(&request->options);
    free(request->arguments);
    *request = (rb_peer_request_t){0};
}
