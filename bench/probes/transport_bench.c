/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport-bench: latency and bandwidth of messages between two ranks, over any
 * transport. It measures the transports alone, without plans or executors, so that a slow
 * reshard can be told from a slow network.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli_support.h"
#include "comm/base.h"
#include "comm/job.h"
#include <crossmesh/version.h>
#include "comm/worker.h"

static const char program[] = "transport-bench";

static const char summary[] =
    "Sends messages between two ranks, checks every byte of the last ones, and prints for each "
    "size the time that one takes one way (half a round trip, median) and the bandwidth with "
    "--window of them in flight. The ranks are processes of this machine, or the two of a "
    "launcher "
    "such as torchrun, mpirun or srun. docs/transport-bench.md explains the columns.";

enum {
    RANKS = 2,
    SIZES_MAX = XM_SWEEP_MOST,
    MOST = 10000000,
    WINDOW_MOST = 1024,
    CLOCK_EVERY = 16
};

/* Tags: of the round trips, of the word that tells the sender that all has come, and the
 * first of the messages in flight. */
enum { TAG_PING, TAG_PONG, TAG_FINISHED, TAG_STREAM };

typedef struct {
    xm_cli_t *cli;
    int transport, hosts, window, iterations, warmup;
    const char *sizes;
    xm_cli_list_t nics;
    bool unregistered, one_buffer, csv;
    xm_sweep_t sweep;
    uint64_t size[SIZES_MAX];
    int size_count;
} options_t;

/* What a rank works with. */
typedef struct {
    const options_t *options;
    xm_worker_t *worker;
    xm_transport_t *transport;
    int rank;
    uint8_t *bytes; /* the longest message, as often as there are buffers */
    size_t length;
    xm_memory_t *memory; /* NULL: unregistered */
    double *samples;
    uint64_t wrong;
    xm_table_t table; /* of rank 0 */
} slot_t;

/* An operation and what became of it. */
typedef struct {
    xm_op_t op;
    bool busy;
    xm_status_t status;
} message_t;

static void on_done(xm_op_t *op, xm_status_t status)
{
    message_t *message = op->arg;

    message->busy = false;
    message->status = status;
}

/* A message that is done at once calls nothing back; `busy` says so. */
static xm_status_t post(slot_t *slot, bool send, uint64_t tag, uint8_t *bytes, size_t length,
                        message_t *message)
{
    xm_status_t status;

    message->op.done = on_done;
    message->op.arg = message;
    message->busy = true;
    message->status = XM_OK;
    status = send ? xm_transport_send(slot->transport, 1 - slot->rank, tag, bytes, length,
                                      slot->memory, &message->op)
                  : xm_transport_receive(slot->transport, 1 - slot->rank, tag, bytes, length,
                                         slot->memory, &message->op);
    message->busy = status == XM_IN_PROGRESS;
    return status < 0 ? status : XM_OK;
}

/* Waits for a message. @p started is the clock not long ago: reading it costs as much as
 * a short message, so it is not read for each. */
static xm_status_t finish(slot_t *slot, const message_t *message, int64_t started)
{
    int64_t deadline = started + (int64_t)(xm_worker_timeout(slot->worker) * 1e9);
    xm_status_t status = XM_OK;

    while (message->busy && status == XM_OK) {
        status = xm_worker_wait(slot->worker, deadline);
    }
    return status < 0 ? status : message->status;
}

/* A byte that depends on its place and on the size under test, so a shifted message is
 * found. */
static uint8_t pattern(uint64_t seed, size_t i)
{
    return (uint8_t)((xm_hash_spread(i + 1) ^ seed * 0xbf58476d) >> 56);
}

/* Receivers start with zeros. */
static void fill(slot_t *slot, uint64_t seed, size_t length)
{
    for (size_t i = 0; i < length; ++i) {
        slot->bytes[i] = slot->rank == 0 ? pattern(seed, i) : 0;
    }
}

/* Measures half the median of the round trips. The median ignores the few that the kernel
 * interrupted. */
static xm_status_t measure_latency(slot_t *slot, size_t length, double *seconds)
{
    int rounds = slot->options->warmup + slot->options->iterations;
    bool first = slot->rank == 0;
    message_t out = {0}, in = {0};
    int64_t start = xm_transport_now(slot->transport);
    xm_status_t status = XM_OK;

    for (int i = 0; i < rounds && status == XM_OK; ++i) {
        int64_t end;

        /* Answers need not be checked: the stream after this is. */
        status = post(slot, false, first ? TAG_PONG : TAG_PING, slot->bytes, length, &in);
        if (status == XM_OK && first) {
            status = post(slot, true, TAG_PING, slot->bytes + length, length, &out);
        }
        XM_THEN(status, finish(slot, &in, start));
        if (status == XM_OK && !first) {
            status = post(slot, true, TAG_PONG, slot->bytes + length, length, &out);
        }
        XM_THEN(status, finish(slot, &out, start));
        end = xm_transport_now(slot->transport);
        if (i >= slot->options->warmup) {
            slot->samples[i - slot->options->warmup] = (double)(end - start) * 0.5e-9;
        }
        start = end;
    }
    (void)xm_array_median(slot->samples, slot->options->iterations);
    *seconds = slot->samples[slot->options->iterations / 2];
    return status;
}

/* The number of buffers that the messages of a stream have. */
static int buffers_of(const options_t *options)
{
    return options->one_buffer ? 1 : options->window;
}

/*
 * Streams messages: rank 0 sends so many, always a window of them in flight, and waits
 * until rank 1 says that it has them all, so that the time includes the arrival of the
 * last.
 */
static xm_status_t stream(slot_t *slot, size_t length, int count, double *seconds)
{
    static message_t messages[WINDOW_MOST];
    int64_t start = xm_transport_now(slot->transport), now = start;
    int buffers = buffers_of(slot->options);
    uint8_t *word = slot->bytes + (size_t)buffers * length;
    message_t word_message = {0};
    xm_status_t status = XM_OK;

    memset(messages, 0, sizeof(messages));
    if (slot->rank == 0) {
        status = post(slot, false, TAG_FINISHED, word, 1, &word_message);
    }
    for (int i = 0; i < count + slot->options->window && status == XM_OK; ++i) {
        int place = i % slot->options->window;

        now = i % CLOCK_EVERY == 0 ? xm_transport_now(slot->transport) : now;
        status = finish(slot, &messages[place], now);
        if (i < count && status == XM_OK) {
            status =
                post(slot, slot->rank == 0, TAG_STREAM + (uint64_t)i,
                     slot->bytes + (size_t)(place % buffers) * length, length, &messages[place]);
        }
    }
    if (slot->rank == 1 && status == XM_OK) {
        status = post(slot, true, TAG_FINISHED, word, 1, &word_message);
    }
    XM_THEN(status, finish(slot, &word_message, now));
    *seconds = (double)(xm_transport_now(slot->transport) - start) * 1e-9;
    return status;
}

/* Checks all messages that were still in the buffers at the end of the stream; earlier
 * ones were overwritten. */
static void check(slot_t *slot, uint64_t seed, size_t length, int count)
{
    int buffers = buffers_of(slot->options), there = count < buffers ? count : buffers;

    for (size_t i = 0; slot->rank == 1 && i < (size_t)there * length; ++i) {
        slot->wrong += slot->bytes[i] != pattern(seed, i);
    }
}

/* The samples' memory serves the exchange of the wrong bytes, as it is not needed any
 * more. */
static xm_status_t measure(slot_t *slot, uint64_t seed)
{
    const options_t *o = slot->options;
    size_t length = (size_t)o->size[seed];
    double latency = 0, seconds = 0;
    xm_status_t status = xm_worker_barrier(slot->worker);

    XM_THEN(status, measure_latency(slot, length, &latency));
    fill(slot, seed, (size_t)buffers_of(o) * length);
    for (int timed = o->warmup > 0 ? 0 : 1; timed < 2 && status == XM_OK; ++timed) {
        status = xm_worker_barrier(slot->worker);
        XM_THEN(status, stream(slot, length, timed ? o->iterations : o->warmup, &seconds));
    }
    if (status < 0) {
        return status;
    }
    check(slot, seed, length, o->iterations);
    XM_TRY(xm_worker_allgather(slot->worker, &slot->wrong, slot->samples, sizeof(slot->wrong)));
    if (slot->rank == 0) {
        uint64_t wrong[RANKS];
        double rate = (double)length * o->iterations / seconds;

        memcpy(wrong, slot->samples, sizeof(wrong));
        slot->wrong = wrong[1];
        xm_table_number(&slot->table, 0, (double)length);
        xm_table_number(&slot->table, 0, o->iterations);
        xm_table_number(&slot->table, 2, latency * 1e6);
        xm_table_number(&slot->table, 3, rate * 1e-6);
        xm_table_number(&slot->table, 6, rate * 1e-9);
        xm_table_number(&slot->table, 0, (double)wrong[1]);
        (void)fflush(stdout);
    }
    return XM_OK;
}

static void print_head(slot_t *slot)
{
    static const xm_table_column_t columns[] = {
        {"size", "B", 11, false},         {"iterations", "", 11, false},
        {"latency", "us", 12, false},     {"bandwidth", "MB/s", 12, false},
        {"bandwidth", "GB/s", 10, false}, {"#wrong", "", 8, false}};
    const options_t *o = slot->options;

    slot->table =
        (xm_table_t){stdout, columns, sizeof(columns) / sizeof(columns[0]), .csv = o->csv};
    if (!o->csv) {
        printf(
            "# %s %s: transport %s, %s, window %d, warm-up %d, ranks %s, memory %sregistered%s\n",
            program, XM_VERSION_STRING, xm_transport_name(slot->transport),
            xm_worker_host_count(slot->worker) > 1 ? "two hosts" : "one host", o->window, o->warmup,
            xm_config_choice(XM_CONFIG_PROGRESS) == 1 ? "spin" : "sleep",
            o->unregistered ? "not " : "", o->one_buffer ? ", one buffer" : "");
    }
    xm_table_head(&slot->table);
}

/* The pages are brought in beforehand, so that no run pays for them. */
static xm_status_t allocate(slot_t *slot)
{
    int buffers = buffers_of(slot->options);
    size_t longest = 0;

    for (int i = 0; i < slot->options->size_count; ++i) {
        size_t size = (size_t)slot->options->size[i];

        longest = size > longest ? size : longest;
    }
    /* Two messages at least, for the round trips, and a byte. */
    slot->length = longest * (size_t)(buffers > 2 ? buffers : 2) + 1;
    slot->bytes = mmap(NULL, slot->length, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    slot->samples = malloc(((size_t)slot->options->iterations + RANKS) * sizeof(*slot->samples));
    if (slot->bytes == MAP_FAILED || slot->samples == NULL) {
        slot->bytes = slot->bytes == MAP_FAILED ? NULL : slot->bytes;
        return XM_NO_MEMORY("%d messages of %zu bytes", buffers, longest);
    }
    return slot->options->unregistered ? XM_OK
                                       : xm_transport_memory_register(slot->transport, slot->bytes,
                                                                      slot->length, &slot->memory);
}

/* The number of ranks is fixed by the kind of measurement. */
static xm_status_t run(slot_t *slot)
{
    XM_TRY(xm_worker_size(slot->worker) == RANKS
               ? allocate(slot)
               : XM_INVALID("%d ranks were started, two are needed", xm_worker_size(slot->worker)));

    if (slot->rank == 0) {
        print_head(slot);
    }
    for (int i = 0; i < slot->options->size_count; ++i) {
        XM_TRY(measure(slot, (uint64_t)i));
    }
    return XM_OK;
}

/* Prints the sentence of a failure: on rank 0, or where nobody else can speak for the
 * rank. */
static int fail(const slot_t *slot, xm_status_t status)
{
    return xm_cli_fail_rank(slot->rank == 0 || status == XM_ERR_PEER_DIED, program, status);
}

/* Memory is deregistered before the worker goes, and unmapped after it. */
static int run_rank(const options_t *options, const xm_job_env_t *env)
{
    static const char *const transports[] = {"ucx", "verbs"};
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    slot_t slot = {.options = options, .rank = env->rank};
    xm_error_t failure;
    int exit_status = EXIT_SUCCESS;
    xm_status_t status;

    params.listen_fd = xm_launch_listen_fd();
    params.transport = transports[options->transport];
    status = xm_worker_create(env, &params, &slot.worker);
    if (status < 0) {
        return fail(&slot, status);
    }
    slot.transport = xm_worker_transport(slot.worker);
    status = run(&slot);
    if (status < 0) {
        xm_error_save(&failure, status);
        exit_status = fail(&slot, status);
    }
    xm_transport_memory_deregister(slot.transport, slot.memory);
    xm_worker_destroy(slot.worker, status < 0 ? failure.sentence : NULL);
    if (slot.bytes != NULL) {
        (void)munmap(slot.bytes, slot.length);
    }
    free(slot.samples);
    return slot.wrong > 0 && exit_status == EXIT_SUCCESS ? EXIT_FAILURE : exit_status;
}

/* The list of NICs of a rank; the last one given serves the ranks behind it. */
static const char *const *variables_of(void *arg, int rank)
{
    static char text[1024];
    static const char *const variables[] = {text, NULL};
    const xm_cli_list_t *nics = arg;
    size_t index = (size_t)rank < nics->count ? (size_t)rank : nics->count - 1;

    (void)snprintf(text, sizeof(text), "XM_NICS=%s", nics->items[index]);
    return variables;
}

static int launch(const options_t *options, char *const *argv)
{
    xm_launch_params_t params = XM_LAUNCH_PARAMS_INIT;
    xm_cli_list_t nics = options->nics;
    int exit_status = 0;
    xm_status_t status;

    params.ranks = RANKS;
    params.ranks_per_host = options->hosts == RANKS ? 1 : 0;
    params.argv = argv;
    if (nics.count > 0) {
        params.variables = variables_of;
        params.arg = &nics;
    }
    status = xm_launch(&params, &exit_status);
    if (status == XM_OK) {
        return EXIT_SUCCESS;
    }
    /* A rank that ends by itself has said why; only the parent knows about one that was
     * killed. */
    if (exit_status > 128 || exit_status == 0) {
        return xm_cli_fail(program, status);
    }
    return exit_status;
}

/* Parses "8,64KiB,1MiB". */
static xm_status_t parse_sizes(options_t *o)
{
    for (const char *at = o->sizes; at != NULL;) {
        char item[32];

        if (o->size_count == SIZES_MAX) {
            return XM_INVALID("--size has more than %d sizes", SIZES_MAX);
        }
        (void)xm_text_word(&at, ',', item, sizeof(item));
        XM_TRY(xm_text_parse_bytes("--size", item, &o->size[o->size_count]));
        if (o->size[o->size_count] == 0 || o->size[o->size_count] > UINT64_C(1) << 40) {
            return XM_INVALID("--size: a message has 1 byte to 1 TiB, not '%s'", item);
        }
        ++o->size_count;
    }
    return XM_OK;
}

/* The values of --nics are checked here, as they are per rank. */
static xm_status_t parse(int argc, char *const *argv, options_t *o)
{
    const xm_cli_option_t table[] = {
        {"transport", 0, XM_CLI_CHOICE, &o->transport, "ucx|verbs", 0, 0,
         "What moves the messages (default: XM_TRANSPORT, else ucx)."},
        {"size", 's', XM_CLI_STRING, &o->sizes, "LIST", 0, 0,
         "Sizes of messages in bytes, e.g. 8,64K,1M (the default)."},
        XM_SWEEP_OPTIONS(&o->sweep),
        {"window", 0, XM_CLI_INT, &o->window, "N", 1, WINDOW_MOST,
         "Messages in flight when bandwidth is measured (default 16)."},
        {"iterations", 'i', XM_CLI_INT, &o->iterations, "I", 1, MOST,
         "Round trips, and then messages, that are timed (default 200)."},
        {"warmup", 'w', XM_CLI_INT, &o->warmup, "W", 0, MOST,
         "Round trips, and then messages, before those (default 20)."},
        {"hosts", 0, XM_CLI_INT, &o->hosts, "H", 1, RANKS,
         "Hosts that the ranks count as being on; with 2, UCX talks over TCP (default 1)."},
        {"nics", 0, XM_CLI_LIST, &o->nics, "LIST", 0, 0,
         "Network devices as in XM_NICS; given twice: of rank 0, then of rank 1."},
        {"unregistered", 0, XM_CLI_FLAG, &o->unregistered, NULL, 0, 0,
         "Do not register the memory of the messages beforehand."},
        {"csv", 0, XM_CLI_FLAG, &o->csv, NULL, 0, 0, "Print the table as CSV, and nothing else."},
        {"one-buffer", 0, XM_CLI_FLAG, &o->one_buffer, NULL, 0, 0,
         "All messages in flight have one buffer, as in ucx_perftest and ib_write_bw."},
    };
    xm_cli_command_t command = XM_CLI_COMMAND(
        program, NULL, summary, "transport-bench --hosts 2 -b 8 -e 1M -f 4", table, 0, 0);

    command.version = "transport-bench " XM_VERSION_STRING;
    XM_TRY(xm_cli_parse(&command, argc, argv, &o->cli));
    if (!xm_cli_finished(o->cli)) {
        XM_TRY(xm_sweep_given(&o->sweep) ? xm_sweep_sizes(&o->sweep, o->size, &o->size_count)
                                         : parse_sizes(o));
    }
    if (xm_sweep_given(&o->sweep) && xm_cli_given(o->cli, "size")) {
        return XM_INVALID("--size and --min-bytes both name sizes; give one of them");
    }
    if (o->nics.count > RANKS) {
        return XM_INVALID("--nics is given %zu times, for two ranks", o->nics.count);
    }
    return XM_OK;
}

int main(int argc, char **argv)
{
    options_t options = {
        .sizes = "8,64KiB,1MiB", .window = 16, .iterations = 200, .warmup = 20, .hosts = 1};
    xm_job_env_t env;
    xm_status_t status = xm_job_env_read(&env);
    int exit_status = EXIT_SUCCESS;

    XM_THEN(status, xm_cli_check_settings(env.rank < 0, program));
    if (status == XM_OK) {
        options.transport = xm_config_choice(XM_CONFIG_TRANSPORT);
        status = parse(argc, argv, &options);
    }
    if (status < 0) {
        exit_status = xm_cli_fail(program, status);
    } else if (!xm_cli_finished(options.cli)) {
        exit_status = env.rank >= 0 ? run_rank(&options, &env) : launch(&options, argv);
    }
    xm_cli_destroy(options.cli);
    return exit_status;
}
