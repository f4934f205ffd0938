/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the option --layers, which is "auto", a number of layers, or a file that names the
 * operators at which layers begin. One option serves for all three, because they answer the same
 * question and exclude each other: digits alone are a number, the word auto is itself, and anything
 * else is the path of a file.
 */

#include "planner/cli/layers_option.h"

#include <stdlib.h>
#include <string.h>

#include "comm/base.h"

enum { MOST_LAYERS = 1 << 16, MOST_BYTES = 1 << 24 };

/* Reads the file, up to 16 MiB; the lines are cut apart in place. A word that is no number and no
 * file lands here too, hence the sentence that names all three readings of the option. */
static xm_status_t read_file(const char *path, char **text)
{
    size_t length = 0;
    xm_status_t status = xm_text_load(path, text, &length);

    if (status == XM_ERR_NOT_FOUND) {
        return xm_error_set(status,
                            "--layers %s: neither auto nor a number of layers nor a file that "
                            "exists",
                            path);
    }
    if (length > MOST_BYTES) {
        free(*text);
        *text = NULL;
        return XM_INVALID("--layers %s: more than %d MiB", path, MOST_BYTES >> 20);
    }
    return status;
}

/* Gives an upper bound on the number of marks, so that their array is allocated once. */
static size_t count_lines(const char *text)
{
    size_t lines = 1;

    for (; *text != '\0'; ++text) {
        lines += *text == '\n';
    }
    return lines;
}

/* Collects one mark per line; blanks around it and all from a '#' on are dropped. The marks point
 * into the text, which the option owns, and after a failure the option still owns whatever was
 * read: the caller clears it in any case. A file without a mark is an error, because a model of no
 * layers would be planned as something that nobody asked for. */
static xm_status_t read_marks(const char *path, ap_layers_option_t *option, ap_layering_t *how)
{
    static const char blanks[] = " \t\r";
    char *rest = NULL;

    XM_TRY(read_file(path, &option->text));
    option->marks = malloc(count_lines(option->text) * sizeof(*option->marks));
    XM_NEED_MEMORY(option->marks, "the marks of %s", path);
    for (char *line = strtok_r(option->text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        size_t length;

        line += strspn(line, blanks);
        length = strcspn(line, "#");
        while (length > 0 && strchr(blanks, line[length - 1]) != NULL) {
            --length;
        }
        line[length] = '\0';
        if (length > 0) {
            option->marks[how->mark_count++] = line;
        }
    }
    how->marks = option->marks;
    return how->mark_count > 0 ? XM_OK : XM_INVALID("--layers %s: no operator stands there", path);
}

/* A pattern and --layers both say where layers begin; giving both is a contradiction and no
 * question of precedence. A file whose name consists of digits must be written with a path, such as
 * ./12. */
xm_status_t ap_layers_option_read(const char *layers, const char *pattern,
                                  ap_layers_option_t *option, ap_layering_t *how)
{
    int64_t count;
    xm_status_t status;

    if (layers != NULL && pattern != NULL) {
        return XM_INVALID("--layers and --layer-pattern: one of them says what a layer is");
    }
    how->pattern = pattern;
    if (layers == NULL) {
        return XM_OK;
    }
    if (strcmp(layers, "auto") == 0) {
        how->layers = AP_LAYERING_AUTOMATIC;
        return XM_OK;
    }
    if (layers[strspn(layers, "0123456789")] != '\0') {
        return read_marks(layers, option, how);
    }
    status = xm_text_parse_int("--layers", layers, 1, MOST_LAYERS, &count);
    how->layers = status == XM_OK ? (int)count : 0;
    return status;
}

void ap_layers_option_clear(ap_layers_option_t *option)
{
    free(option->text);
    free(option->marks);
    *option = (ap_layers_option_t){0};
}
