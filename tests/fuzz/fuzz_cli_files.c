/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes in the files that reshard-bench reads, models, parallel configurations, tables of
 * shards, in the file by which an emulated cluster is found, and in that of autopar's --layers:
 * each reader refuses them with a sentence, or has what holds together. The first byte says which
 * reader. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "bench/cluster/state.h"
#include "bench/model/file.h"
#include "bench/model/parallel_config.h"
#include "bench/model/sharding.h"
#include "planner/cli/layers_option.h"
#include "tests/fuzz/json_mutator.h"

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One file for all runs, which is locked, as that of a cluster that lives. */
static char folder[] = "/tmp/fuzz_cli_files.XXXXXX", path[64];
static int file = -1;

static void expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void clean_up(void)
{
    (void)unlink(path);
    (void)rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    rb_cluster_claim_t claim;

    (void)argc;
    (void)argv;
    expect(mkdtemp(folder) != NULL && setenv(RB_CLUSTER_STATE_DIR, folder, 1) == 0);
    expect(rb_cluster_state_claim("fuzz", &claim) == XM_OK);
    (void)snprintf(path, sizeof(path), "%s", claim.path);
    file = claim.fd;
    return atexit(clean_up);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    if (size < 2 || max_size < 2) {
        data[0] = (uint8_t)seed;
        return 1;
    }
    return 1 + json_mutate(data + 1, size - 1, max_size - 1, seed);
}

static void read_model(void)
{
    rb_tensor_list_t list = {0};

    if (rb_model_file_read(path, &list) == XM_OK) {
        expect(list.count >= 1);
        for (int t = 0; t < list.count; ++t) {
            for (int d = 0; d < list.tensors[t].dims; ++d) {
                expect(list.tensors[t].shape[d] >= 0);
            }
        }
    }
    rb_tensor_list_clear(&list);
}

static void read_parallel(void)
{
    rb_parallel_t train, generation;

    if (rb_parallel_read(path, &train, &generation) == XM_OK &&
        rb_parallel_resolve(&train) == XM_OK) {
        expect(train.num_gpus >= 1 && train.data >= 1 && train.expert_data >= 1);
    }
}

static void read_shards(void)
{
    rb_shard_table_t table = {0};

    if (rb_shard_table_read(path, &table) == XM_OK) {
        expect(table.count >= 0 && table.head_size >= 0);
    }
    rb_shard_table_clear(&table);
}

static void read_cluster(void)
{
    rb_cluster_members_t members;

    if (rb_cluster_state_read("fuzz", &members) == XM_OK) {
        expect(members.shape.hosts >= 1 && members.shape.hosts <= RB_CLUSTER_HOSTS);
        expect(members.shape.nics >= 1 && members.shape.nics <= RB_CLUSTER_NICS);
    }
}

/* The names have no blanks around them. */
static void read_layers(void)
{
    ap_layers_option_t option = {0};
    ap_layering_t how = {0};

    if (ap_layers_option_read(path, NULL, &option, &how) == XM_OK) {
        for (size_t m = 0; m < (size_t)how.mark_count; ++m) {
            size_t length = strlen(how.marks[m]);

            expect(length > 0 && how.marks[m][0] != ' ' && how.marks[m][length - 1] != ' ');
        }
    } else {
        expect(strstr(xm_last_error(), "--layers") != NULL);
    }
    ap_layers_option_clear(&option);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const readers[])(void) = {read_model, read_parallel, read_shards, read_cluster,
                                            read_layers};

    if (size < 1) {
        return 0;
    }
    expect(ftruncate(file, 0) == 0 && pwrite(file, data + 1, size - 1, 0) == (ssize_t)(size - 1));
    readers[data[0] % 5]();
    return 0;
}
