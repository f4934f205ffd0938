/* Moves a matrix from rows on ranks 0 and 1 to columns on ranks 2 and 3, and checks what arrives.
 */
#include <crossmesh/reshard.h>

#include <stdio.h>
#include <stdlib.h>

enum { N = 512, HALF = N / 2, TILE = N * HALF };

/* Row i and column j of the matrix hold i * N + j. This is element k of a rank's tile of it. */
static int element(int rank, int k)
{
    return rank < 2 ? rank * TILE + k : k / HALF * N + (rank - 2) * HALF + k % HALF;
}

/* A rank that exits is gone: every wait of the others ends and names it. */
static void check(xm_status_t status)
{
    if (status != XM_OK) {
        fprintf(stderr, "%s\n", xm_last_error());
        exit(1);
    }
}

int main(void)
{
    static int tile[TILE]; /* of rows on ranks 0 and 1, of columns on ranks 2 and 3 */
    xm_job_env_t env;
    xm_worker_params_t worker_params = XM_WORKER_PARAMS_INIT;
    xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;
    xm_worker_t *worker;
    xm_layout_t *rows, *columns;
    xm_reshard_t *reshard;
    int wrong = 0;

    check(xm_job_env_read(&env));
    check(xm_worker_create(&env, &worker_params, &worker));
    for (int k = 0; k < TILE; k++) {
        tile[k] = env.rank < 2 ? element(env.rank, k) : -1;
    }

    check(xm_layout_parse("512x512", "2", "0-1", "S0R", XM_PARTITION_EVEN, &rows));
    check(xm_layout_parse("512x512", "2", "2-3", "RS0", XM_PARTITION_EVEN, &columns));
    const xm_tensor_t matrix = {"matrix", rows, columns, 32};
    const xm_tensor_buffers_t source = {tile, sizeof(tile), NULL, 0};
    const xm_tensor_buffers_t destination = {NULL, 0, tile, sizeof(tile)};
    params.tensors = &matrix;
    params.buffers = env.rank < 2 ? &source : &destination;
    check(xm_reshard_create(worker, &params, &reshard));
    check(xm_reshard_run(reshard, 0)); /* as often as wanted: it moves what the rows are now */

    for (int k = 0; k < TILE; k++) {
        wrong += tile[k] != element(env.rank, k);
    }
    printf("rank %d: %zu bytes, %d elements wrong\n", env.rank, sizeof(tile), wrong);
    xm_reshard_destroy(reshard);
    xm_layout_destroy(columns);
    xm_layout_destroy(rows);
    xm_worker_destroy(worker, NULL);
    return wrong > 0;
}
