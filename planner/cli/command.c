/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several sub-commands of autopar share: a cluster profile in the size that the command asks
 * for, and numbers in lists and ranges. They lie here so that every sub-command takes the same
 * spelling, refuses the same mistakes, and says so in the same sentence.
 */

#include "planner/cli/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

const char *ap_command_argument(const xm_cli_t *cli, size_t index)
{
    size_t count;
    const char *const *arguments = xm_cli_arguments(cli, &count);

    return index < count ? arguments[index] : NULL;
}

/* Profiles are immutable, so another size or another overlap means another profile. */
xm_status_t ap_command_load_cluster(const char *path, int hosts, int devices, double overlap,
                                    xm_cluster_profile_t **profile)
{
    xm_cluster_profile_t *loaded, *other;
    xm_status_t status = XM_OK;

    XM_TRY(xm_cluster_profile_load(path, &loaded));
    hosts = hosts > 0 ? hosts : xm_cluster_profile_hosts(loaded);
    devices = devices > 0 ? devices : xm_cluster_profile_devices_per_host(loaded);
    if (hosts != xm_cluster_profile_hosts(loaded) ||
        devices != xm_cluster_profile_devices_per_host(loaded)) {
        status = xm_cluster_profile_resize(loaded, hosts, devices, &other);
        xm_cluster_profile_destroy(loaded);
        loaded = other;
    }
    if (status == XM_OK && overlap >= 0) {
        status = xm_cluster_profile_set_gradient_overlap(loaded, overlap, &other);
        xm_cluster_profile_destroy(loaded);
        loaded = other;
    }
    if (status == XM_OK) {
        *profile = loaded;
    }
    return status;
}

/* Reads numbers with commas between them. An empty entry, as in "1,,2" or after a last
 * comma, is refused by the parser of numbers. A word that is too long for the buffer is cut at 31
 * digits, which is still beyond the limit, and so it is refused too. */
xm_status_t ap_command_parse_list(const char *what, const char *text, int64_t least,
                                  int64_t *values, size_t capacity, size_t *count)
{
    size_t used = 0;

    while (text != NULL) {
        char word[32];

        if (used == capacity) {
            return XM_INVALID("%s: more than %zu values", what, capacity);
        }
        (void)xm_text_word(&text, ',', word, sizeof(word));
        XM_TRY(xm_text_parse_int(what, word, least, INT32_MAX, &values[used++]));
    }
    *count = used;
    return XM_OK;
}

/* Reads "4" as exactly four stages and "2-8" as a range. Both results are set even where the range
 * is upside down, but the caller then gets an error and uses neither. */
static xm_status_t parse_stages(const char *text, int *minimum, int *maximum)
{
    size_t length = strcspn(text, "-");
    char word[16];
    int64_t low, high;

    (void)snprintf(word, sizeof(word), "%.*s", (int)(length < 15 ? length : 15), text);
    XM_TRY(xm_text_parse_int("--stages", word, 1, 1 << 20, &low));
    high = low;
    if (text[length] == '-') {
        XM_TRY(xm_text_parse_int("--stages", text + length + 1, 1, 1 << 20, &high));
    }
    *minimum = (int)low;
    *maximum = (int)high;
    return low <= high ? XM_OK : XM_INVALID("--stages: %s is not a range from low to high", text);
}

/* A part is below 1 in the parameters, and bytes are whole numbers. */
xm_status_t ap_command_parse_reserve(const char *text, double *reserve)
{
    static const char what[] = "--memory-reserve";
    size_t length = text != NULL ? strlen(text) : 0;
    char number[32];
    uint64_t bytes;
    xm_status_t status;

    *reserve = AP_MEMORY_RESERVE_DEFAULT;
    if (text == NULL) {
        return XM_OK;
    }
    if (length > 1 && length < sizeof(number) && text[length - 1] == '%') {
        (void)snprintf(number, sizeof(number), "%.*s", (int)length - 1, text);
        status = xm_text_parse_double(what, number, 0, 99, reserve);
        *reserve *= 0.01;
        return status;
    }
    status = xm_text_parse_bytes(what, text, &bytes);
    *reserve = (double)bytes;
    return status;
}

/* A limit of 0 bytes is refused here: inside the planner 0 means that the profile says how much
 * there is. */
xm_status_t ap_command_search_params(const ap_command_search_t *search, int64_t *micro_batches,
                                     size_t capacity, ap_planner_params_t *params)
{
    if (search->model == NULL || search->cluster == NULL) {
        return XM_INVALID("--%s is needed", search->model == NULL ? "model" : "cluster");
    }
    params->model = search->model;
    params->global_batch = search->global_batch;
    params->memory_limit =
        search->memory_limit == AP_COMMAND_NOT_GIVEN ? 0.0 : (double)search->memory_limit;
    params->recompute = (ap_recompute_t)search->recompute;
    XM_TRY(ap_command_parse_reserve(search->memory_reserve, &params->memory_reserve));
    if (search->micro_batches != NULL) {
        params->micro_batches = micro_batches;
        XM_TRY(ap_command_parse_list("--micro-batches", search->micro_batches, 1, micro_batches,
                                     capacity, &params->micro_batch_count));
    }
    if (search->stages != NULL) {
        XM_TRY(parse_stages(search->stages, &params->min_stages, &params->max_stages));
    }
    return XM_OK;
}
