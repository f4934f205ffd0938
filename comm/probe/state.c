/* SPDX-License-Identifier: Apache-2.0 */
/* The results of a probe so far: named steps with their numbers, which a later probe of the
 * same job takes over. Numbers are written with 17 digits, so that reading gives the same bits
 * and a resumed probe makes the same profile as one in a single go. The job's description is
 * part of it: numbers of other hosts must not be mixed in. */
#include "comm/probe/state.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { FORMAT_VERSION = 2 };

typedef struct {
    char *name;
    double *numbers;
    size_t count;
} step_t;

struct xm_probe_state {
    char *job;
    step_t *steps;
    size_t count;
};

/* An empty state. The job's description is copied, because the state may outlive the probe's. */
xm_status_t xm_probe_state_create(const char *job, xm_probe_state_t **state)
{
    xm_probe_state_t *made = calloc(1, sizeof(*made));

    if (made == NULL || (made->job = strdup(job)) == NULL) {
        free(made);
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    *state = made;
    return XM_OK;
}

/* The numbers stay the state's. A probe asks once for each step, so a search is enough. */
const double *xm_probe_state_find(const xm_probe_state_t *state, const char *step, size_t *count)
{
    for (size_t i = 0; i < state->count; ++i) {
        if (strcmp(state->steps[i].name, step) == 0) {
            *count = state->steps[i].count;
            return state->steps[i].numbers;
        }
    }
    return NULL;
}

/* Adds a step, or leaves the state as it was. */
xm_status_t xm_probe_state_add(xm_probe_state_t *state, const char *step, const double *numbers,
                               size_t count)
{
    step_t *steps = realloc(state->steps, (state->count + 1) * sizeof(*steps));
    step_t added = {.name = strdup(step), .numbers = calloc(count + 1, sizeof(double))};

    /* The larger array is kept even on failure: realloc has freed the old one. */
    if (steps != NULL) {
        state->steps = steps;
    }
    if (steps == NULL || added.name == NULL || added.numbers == NULL) {
        free(added.name);
        free(added.numbers);
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: out of memory");
    }
    for (size_t i = 0; i < count; ++i) {
        added.numbers[i] = numbers[i];
    }
    added.count = count;
    steps[state->count++] = added;
    return XM_OK;
}

/* The whole state as a text, to be written after each step: what is lost by a crash is one step. */
xm_status_t xm_probe_state_to_text(const xm_probe_state_t *state, char **text)
{
    json_t *steps = json_object();
    json_t *root =
        json_pack("{s:i,s:s,s:o}", "probe", FORMAT_VERSION, "job", state->job, "steps", steps);
    char *dumped;

    for (size_t i = 0; i < state->count; ++i) {
        json_t *numbers = json_array();

        for (size_t k = 0; k < state->steps[i].count; ++k) {
            (void)json_array_append_new(numbers, json_real(state->steps[i].numbers[k]));
        }
        (void)json_object_set_new(steps, state->steps[i].name, numbers);
    }
    dumped = root != NULL ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    if (dumped == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "probe: no memory for the results so far");
    }
    *text = dumped;
    return XM_OK;
}

/* Measured numbers are never negative, so a negative one is a damaged file. */
static xm_status_t read_step(xm_probe_state_t *state, const char *name, const json_t *array)
{
    size_t count = json_array_size(array);
    double *numbers;
    xm_status_t status = XM_OK;

    if (!json_is_array(array)) {
        return xm_json_wrong_type(name, "an array of numbers", array);
    }
    numbers = calloc(count + 1, sizeof(*numbers));
    if (numbers == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "%s: no memory for %zu numbers", name, count);
    }
    for (size_t i = 0; status == XM_OK && i < count; ++i) {
        const json_t *number = json_array_get(array, i);

        numbers[i] = json_number_value(number);
        if (!json_is_number(number) || numbers[i] < 0) {
            status = XM_MALFORMED("%s[%zu] is not a number of at least 0", name, i);
        }
    }
    XM_THEN(status, xm_probe_state_add(state, name, numbers, count));
    free(numbers);
    return status;
}

/* Version and job are compared before any number is taken. */
static xm_status_t from_json(json_t *root, const char *job, xm_probe_state_t *state)
{
    static const char *const keys[] = {"probe", "job", "steps"};
    const char *written_for = NULL, *name;
    const json_t *steps = NULL;
    json_t *numbers;
    xm_status_t status;
    int version = 0;

    if (!json_is_object(root)) {
        return xm_json_wrong_type("the document", "an object", root);
    }
    if ((status = xm_json_int(root, "probe", &version)) < 0 ||
        (status = xm_json_check_keys(root, "", keys, 3)) < 0 ||
        (status = xm_json_string(root, "job", &written_for)) < 0 ||
        (status = xm_json_object(root, "steps", &steps)) < 0) {
        return status;
    }
    /* Other versions are refused and not converted: to measure again is cheap compared with a wrong
     * profile. */
    if (version != FORMAT_VERSION) {
        return XM_UNSUPPORTED("probe is %d; this program reads version %d", version,
                              FORMAT_VERSION);
    }
    if (strcmp(written_for, job) != 0) {
        return XM_MISMATCH("the results so far are of another job (%.200s); this one is %.200s",
                           written_for, job);
    }
    /* The cast only removes const, as the macro wants it; nothing is changed. */
    json_object_foreach((json_t *)steps, name, numbers)
    {
        status = read_step(state, name, numbers);
        XM_TRY(status);
    }
    return XM_OK;
}

/* Reads a whole state, or fails with the file's name and leaves nothing. */
xm_status_t xm_probe_state_from_text(const char *text, size_t length, const char *source,
                                     const char *job, xm_probe_state_t **state)
{
    json_t *root;
    xm_probe_state_t *read = NULL;
    xm_status_t status;

    XM_TRY(xm_json_parse(source, text, length, &root));
    /* A state of its own is filled, so the caller's is untouched when the text is bad. */
    status = xm_probe_state_create(job, &read);
    XM_THEN(status, from_json(root, job, read));
    json_decref(root);
    if (status < 0) {
        xm_probe_state_destroy(read);
        return xm_error_prefix(status, "%s", source);
    }
    *state = read;
    return XM_OK;
}

void xm_probe_state_destroy(xm_probe_state_t *state)
{
    if (state == NULL) {
        return;
    }
    for (size_t i = 0; i < state->count; ++i) {
        free(state->steps[i].numbers);
        free(state->steps[i].name);
    }
    free(state->steps);
    free(state->job);
    free(state);
}
