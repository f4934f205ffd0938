/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of JSON reports. An addition that fails costs one field.
 */
#include "bench/run/report_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FLAGS = JSON_INDENT(1) | JSON_REAL_PRECISION(12) };

/* JSON is UTF-8, arguments and file names are any bytes: those that are not UTF-8 lose
 * what is not ASCII. */
json_t *rb_json_text(const char *text)
{
    json_t *json = json_string(text);
    char *ascii = json == NULL ? strdup(text) : NULL;

    for (char *c = ascii; c != NULL && *c != '\0'; ++c) {
        if ((unsigned char)*c >= 0x80) {
            *c = '?';
        }
    }
    if (ascii != NULL) {
        json = json_string(ascii);
        free(ascii);
    }
    return json;
}

json_t *rb_json_arguments(int argc, char *const *argv)
{
    json_t *arguments = json_array();

    for (int i = 0; i < argc; ++i) {
        (void)json_array_append_new(arguments, rb_json_text(argv[i]));
    }
    return arguments;
}

json_t *rb_json_numbers(const double *numbers, int count)
{
    json_t *all = json_array();

    for (int i = 0; i < count; ++i) {
        (void)json_array_append_new(all, json_real(numbers[i]));
    }
    return all;
}

json_t *rb_json_times(const rb_result_t *result)
{
    rb_times_t times = rb_result_times(result);

    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:o}", "min", times.min, "median", times.median,
                     "max", times.max, "mean", times.mean, "variance", times.variance, "all",
                     rb_json_numbers(result->seconds, result->runs));
}

/* Standard output first, then the file: a file that cannot be written does not cost the
 * printed report. */
xm_status_t rb_json_write(const json_t *root, bool print, const char *path)
{
    if (print) {
        if (json_dumpf(root, stdout, FLAGS) != 0) {
            return xm_error_set(XM_ERR_IO, "cannot write the JSON report to standard output");
        }
        (void)fputc('\n', stdout);
    }
    if (path != NULL && json_dump_file(root, path, FLAGS) != 0) {
        return xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    }
    return xm_cli_flush();
}
