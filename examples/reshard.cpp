// Moves a matrix from rows on ranks 0 and 1 to columns on ranks 2 and 3, and checks what arrives.
#include <crossmesh/reshard.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

constexpr int n = 512, half = n / 2;

// Row i and column j of the matrix hold i * n + j. This is element k of a rank's tile of it.
static int element(int rank, int k)
{
    return rank < 2 ? rank * n * half + k : k / half * n + (rank - 2) * half + k % half;
}

template <typename T> using owner = std::unique_ptr<T, void (*)(T *)>;

static void check(xm_status_t status)
{
    if (status != XM_OK) {
        throw std::runtime_error(xm_last_error());
    }
}

static int run(xm_worker_t *worker, int rank)
{
    const bool source = rank < 2;
    std::vector<int> tile(n * half, -1);
    for (int k = 0; source && k < n * half; k++) {
        tile[k] = element(rank, k);
    }

    xm_layout_t *rows = nullptr, *columns = nullptr;
    xm_reshard_t *made = nullptr;
    check(xm_layout_parse("512x512", "2", "0-1", "S0R", XM_PARTITION_EVEN, &rows));
    owner<xm_layout_t> rows_owner(rows, xm_layout_destroy);
    check(xm_layout_parse("512x512", "2", "2-3", "RS0", XM_PARTITION_EVEN, &columns));
    owner<xm_layout_t> columns_owner(columns, xm_layout_destroy);

    const uint64_t bytes = tile.size() * sizeof(int);
    const xm_tensor_t matrix = {"matrix", rows, columns, 32};
    const xm_tensor_buffers_t buffers = source
                                            ? xm_tensor_buffers_t{tile.data(), bytes, nullptr, 0}
                                            : xm_tensor_buffers_t{nullptr, 0, tile.data(), bytes};
    xm_reshard_params_t params = XM_RESHARD_PARAMS_INIT;
    params.tensors = &matrix;
    params.buffers = &buffers;
    check(xm_reshard_create(worker, &params, &made));
    owner<xm_reshard_t> reshard(made, xm_reshard_destroy);
    check(xm_reshard_run(reshard.get(), 0)); // as often as wanted: it moves what the rows are now

    int wrong = 0;
    for (int k = 0; k < n * half; k++) {
        wrong += tile[k] != element(rank, k);
    }
    std::printf("rank %d: %zu bytes, %d elements wrong\n", rank, tile.size() * sizeof(int), wrong);
    return wrong > 0;
}

int main()
{
    xm_worker_params_t params = XM_WORKER_PARAMS_INIT;
    xm_worker_t *worker = nullptr;
    xm_job_env_t env;
    try {
        check(xm_job_env_read(&env));
        check(xm_worker_create(&env, &params, &worker));
        const int status = run(worker, env.rank);
        xm_worker_destroy(worker, nullptr);
        return status;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        xm_worker_destroy(worker, error.what()); // the others are told the sentence
        return 1;
    }
}
