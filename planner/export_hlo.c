#include "planner/export_hlo.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "planner/export_site.h"
#include "planner/export_spec.h"
#include "planner/hlo_build.h"
#include "planner/hlo_file.h"

/* Replaces `length` bytes at `at` by a text. */
typedef struct edit {
    size_t at, length;
    int number; /* edits at one place stay in the order they were made in */
    char *text;
} edit_t;

typedef struct exporter {
    const ap_shard_solution_t *solution;
    const hlo_source_t *source;
    ap_export_mesh_t mesh;
    const hlo_module_t *module;
    int *sites; /* indices, by place in the text */
    edit_t *edits;
    int edit_count, edit_room;
} exporter_t;

/* One instruction and the sites that look at it. */
typedef struct place {
    const hlo_computation_t *in;
    const hlo_instruction_t *of;
    const int *sites;
    int count;
} place_t;

static xm_status_t no_memory(void)
{
    return xm_error_set(XM_ERR_NO_MEMORY, "no memory for an HLO module with shardings");
}

/* Takes over `text`, also when it fails. */
static xm_status_t add_edit(exporter_t *e, size_t at, size_t length, char *text)
{
    if (text == NULL) {
        return no_memory();
    }
    if (e->edit_count == e->edit_room) {
        int room = e->edit_room == 0 ? 256 : 2 * e->edit_room;
        edit_t *grown = realloc(e->edits, (size_t)room * sizeof(*grown));

        if (grown == NULL) {
            free(text);
            return no_memory();
        }
        e->edits = grown;
        e->edit_room = room;
    }
    e->edits[e->edit_count] =
        (edit_t){.at = at, .length = length, .number = e->edit_count, .text = text};
    ++e->edit_count;
    return XM_OK;
}

/* Text that is made to measure; NULL without memory. */
static char *print(const char *format, ...) XM_PRINTF(1, 2);

static char *print(const char *format, ...)
{
    va_list args, again;
    char *text = NULL;
    int length;

    va_start(args, format);
    va_copy(again, args);
    length = vsnprintf(NULL, 0, format, args);
    if (length >= 0) {
        text = malloc((size_t)length + 1);
    }
    if (text != NULL) {
        (void)vsnprintf(text, (size_t)length + 1, format, again);
    }
    va_end(again);
    va_end(args);
    return text;
}

/* Writes or replaces the annotation of an instruction. */
static xm_status_t annotate(exporter_t *e, const hlo_instruction_t *of, const char *sharding)
{
    for (int a = 0; a < of->attribute_count; ++a) {
        const hlo_attribute_t *attribute = &of->attributes[a];

        if (hlo_slice_is(attribute->key, "sharding")) {
            return add_edit(e, (size_t)(attribute->value.at - e->module->text.bytes),
                            attribute->value.length, print("%s", sharding));
        }
    }
    return add_edit(e, of->end, 0, print(", sharding=%s", sharding));
}

static int rank_of(const exporter_t *e, int tensor)
{
    return ap_graph_tensor(e->solution->graph, tensor)->shape.rank;
}

/* The sharding that all sites of an instruction agree on. What needs no data is whole everywhere:
 * every user takes its part without asking another device. */
static bool common_spec(const exporter_t *e, const place_t *place, ap_spec_t *spec)
{
    for (int i = 0; i < place->count; ++i) {
        const hlo_site_t *site = &e->source->sites[place->sites[i]];
        ap_spec_t made = site->tensor < 0 ? AP_SPEC_REPLICATED
                                          : ap_export_site_found(e->solution, e->source,
                                                                 site->context, site->tensor);

        if (i > 0 && made != *spec) {
            return false;
        }
        *spec = made;
    }
    return place->count > 0;
}

/* The sites of an instruction: one slice of the sorted list. */
static void find_sites(const exporter_t *e, place_t *place)
{
    int low = 0, high = e->source->site_count;

    while (low < high) {
        int middle = low + (high - low) / 2;

        if (e->source->sites[e->sites[middle]].at < place->of->at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    place->sites = e->sites + low;
    for (place->count = 0; low + place->count < e->source->site_count; ++place->count) {
        if (e->source->sites[place->sites[place->count]].at != place->of->at) {
            break;
        }
    }
}

/* The names of an instruction's operands as they stand in the text. */
static xm_status_t operand_names(const exporter_t *e, const hlo_instruction_t *of,
                                 hlo_slice_t *names)
{
    const hlo_text_t *text = &e->module->text;
    hlo_cursor_t cursor = {.text = text,
                           .at = (size_t)(of->opcode.at - text->bytes) + of->opcode.length,
                           .end = of->end};
    xm_status_t status = hlo_expect(&cursor, "(");

    for (int o = 0; o < of->operand_count && status == XM_OK; ++o) {
        hlo_slice_t value;
        size_t start;

        status = hlo_value(&cursor, &value);
        if (status != XM_OK) {
            return status;
        }
        /* "f32[2]{0} %name" or "name": the last word. */
        for (start = value.length; start > 0; --start) {
            char c = value.at[start - 1];

            if (c == ' ' || c == '/') {
                break;
            }
        }
        names[o] = (hlo_slice_t){value.at + start, value.length - start};
        (void)hlo_accept(&cursor, ",");
    }
    return status;
}

/* Where an instruction begins, with the word ROOT in front of its name. */
static size_t start_of(const hlo_text_t *text, size_t at)
{
    static const char root[] = "ROOT";
    const size_t length = sizeof(root) - 1;
    size_t back = at;

    while (back > 0 && text->bytes[back - 1] == ' ') {
        --back;
    }
    return back >= length && memcmp(text->bytes + back - length, root, length) == 0 ? back - length
                                                                                    : at;
}

/* The type of an instruction as it stands in the text. */
static hlo_slice_t type_text(const exporter_t *e, const hlo_instruction_t *of)
{
    const char *end = e->module->text.bytes + e->module->text.size;
    const char *type = memchr(of->name.at, '=', (size_t)(end - of->name.at));
    hlo_slice_t text = {type + 1, (size_t)(of->opcode.at - type) - 1};

    while (text.length > 0 && text.at[0] == ' ') {
        ++text.at;
        --text.length;
    }
    while (text.length > 0 && text.at[text.length - 1] == ' ') {
        --text.length;
    }
    return text;
}

/* Puts the steps of a resharding between an instruction and its operand, as the annotations that
 * XLA keeps: custom calls to Sharding. */
static xm_status_t add_steps(exporter_t *e, const place_t *place, int operand, ap_spec_t found,
                             ap_spec_t used, hlo_slice_t name)
{
    const int tensor = e->source->sites[place->sites[0]].operands[operand];
    const hlo_instruction_t *of = &place->in->instructions[place->of->operands[operand]];
    const hlo_text_t *text = &e->module->text;
    const hlo_slice_t type = type_text(e, of), own = place->of->name;
    const char *percent = name.at[0] == '%' ? "%" : "";
    ap_spec_t path[AP_MAX_RESHARD_STEPS + 1];
    int count = ap_export_site_path(e->solution, tensor, found, used, path);
    char *previous = print("%.*s", (int)name.length, name.at);
    xm_status_t status = XM_OK;

    for (int s = 1; s < count && previous != NULL && status == XM_OK; ++s) {
        char sharding[AP_HLO_SHARDING_TEXT];
        char *next = print("%s%.*s.operand%d.step%d", percent, (int)own.length, own.at, operand, s);

        status = add_edit(e, start_of(text, place->of->at), 0,
                          print("%s = %.*s custom-call(%s), custom_call_target=\"Sharding\", "
                                "sharding=%s\n  ",
                                next, (int)type.length, type.at, previous,
                                ap_export_hlo_sharding(&e->mesh, path[s], rank_of(e, tensor),
                                                       sharding, sizeof(sharding))));
        free(previous);
        previous = next;
    }
    if (previous == NULL) {
        return no_memory();
    }
    if (status != XM_OK) {
        free(previous);
        return status;
    }
    return add_edit(e, (size_t)(name.at - text->bytes), name.length, previous);
}

/* Instructions whose operators are not their own. */
static bool has_own_operators(const hlo_instruction_t *of)
{
    static const char *const others[] = {"call", "fusion", "while", "conditional", "tuple"};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); ++i) {
        if (hlo_slice_is(of->opcode, others[i])) {
            return false;
        }
    }
    return true;
}

/* The reshardings on the way into an instruction, where all of its sites agree. */
static xm_status_t add_reshardings(exporter_t *e, const place_t *place)
{
    hlo_slice_t *names = calloc((size_t)place->of->operand_count + 1, sizeof(*names));
    xm_status_t status = names == NULL ? no_memory() : operand_names(e, place->of, names);

    for (int o = 0; o < place->of->operand_count && status == XM_OK; ++o) {
        ap_spec_t used = 0, found = 0;
        bool agree = place->count > 0;

        for (int i = 0; i < place->count && agree; ++i) {
            const hlo_site_t *site = &e->source->sites[place->sites[i]];
            ap_spec_t to, from;

            agree = ap_export_site_used(e->solution, site, o, &to);
            if (agree) {
                from =
                    ap_export_site_found(e->solution, e->source, site->context, site->operands[o]);
                agree = from != to && (i == 0 || (to == used && from == found));
                used = to;
                found = from;
            }
        }
        if (agree) {
            status = add_steps(e, place, o, found, used, names[o]);
        }
    }
    free(names);
    return status;
}

/* The sharding of the entry's result: one for each of its leaves. */
static xm_status_t annotate_root(exporter_t *e, const hlo_instruction_t *root)
{
    size_t size;
    char *text = NULL, one[AP_HLO_SHARDING_TEXT];
    FILE *stream = open_memstream(&text, &size);
    xm_status_t status;

    if (stream == NULL) {
        return no_memory();
    }
    (void)fputs(root->type->tuple ? "{" : "", stream);
    for (int i = 0; i < e->source->result_count; ++i) {
        int tensor = e->source->results[i].tensor;
        ap_spec_t spec =
            tensor >= 0 ? ap_shard_solution_kept(e->solution, tensor) : AP_SPEC_REPLICATED;

        (void)fprintf(stream, "%s%s", i == 0 ? "" : ", ",
                      ap_export_hlo_sharding(&e->mesh, spec, e->source->results[i].shape.rank, one,
                                             sizeof(one)));
    }
    (void)fputs(root->type->tuple ? "}" : "", stream);
    status = fclose(stream) == 0 ? annotate(e, root, text) : no_memory();
    free(text);
    return status;
}

/* Whether two loops carry the same arrays in the same specs. */
static bool same_state(const exporter_t *e, const hlo_loop_t *a, const hlo_loop_t *b)
{
    if (a->count != b->count) {
        return false;
    }
    for (int i = 0; i < a->count; ++i) {
        if (ap_export_site_carried(e->solution, a, i) !=
            ap_export_site_carried(e->solution, b, i)) {
            return false;
        }
    }
    return true;
}

/* The loop of an instruction, when all that are built from its text carry their state alike. */
static const hlo_loop_t *loop_at(const exporter_t *e, size_t at)
{
    const hlo_loop_t *loop = NULL;

    for (int l = 0; l < e->source->loop_count && loop == NULL; ++l) {
        loop = e->source->loops[l].at == at ? &e->source->loops[l] : NULL;
    }
    for (int l = 0; l < e->source->loop_count && loop != NULL; ++l) {
        const hlo_loop_t *other = &e->source->loops[l];
        bool related = other->at == at || other->body_computation == loop->body_computation ||
                       other->condition_computation == loop->condition_computation;

        if (related && !same_state(e, loop, other)) {
            return NULL;
        }
    }
    return loop;
}

/* Whether a loop is the first of those that share a computation with it. */
static bool is_first(const exporter_t *e, const hlo_loop_t *loop, int computation)
{
    for (const hlo_loop_t *other = e->source->loops; other < loop; ++other) {
        if (other->body_computation == computation || other->condition_computation == computation) {
            return false;
        }
    }
    return true;
}

static char *state_sharding(const exporter_t *e, const hlo_loop_t *loop)
{
    char *text = NULL, one[AP_HLO_SHARDING_TEXT];
    size_t size;
    FILE *stream = open_memstream(&text, &size);

    if (stream == NULL) {
        return NULL;
    }
    for (int i = 0; i < loop->count; ++i) {
        (void)fprintf(stream, "%s%s", i == 0 ? "{" : ", ",
                      ap_export_hlo_sharding(&e->mesh, ap_export_site_carried(e->solution, loop, i),
                                             loop->state[i].shape.rank, one, sizeof(one)));
    }
    (void)fputc('}', stream);
    if (fclose(stream) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* The parameter of a computation of the loop, and what it returns if that is put together there. */
static xm_status_t annotate_state(exporter_t *e, const hlo_loop_t *loop, int computation,
                                  const char *sharding)
{
    const hlo_computation_t *in = &e->module->computations[computation];
    const hlo_instruction_t *root = &in->instructions[in->root];
    xm_status_t status = XM_OK;

    if (!is_first(e, loop, computation) || in->parameter_count != 1) {
        return XM_OK;
    }
    status = annotate(e, &in->instructions[in->parameters[0]], sharding);
    if (status == XM_OK && computation == loop->body_computation &&
        hlo_slice_is(root->opcode, "tuple")) {
        status = annotate(e, root, sharding);
    }
    return status;
}

/* What a loop carries has one sharding all the way: where it goes in, in the body, and where it
 * comes out. */
static xm_status_t annotate_loop(exporter_t *e, const hlo_instruction_t *of)
{
    const hlo_loop_t *loop = of->type->tuple ? loop_at(e, of->at) : NULL;
    char *sharding;
    xm_status_t status;

    if (loop == NULL) {
        return XM_OK;
    }
    sharding = state_sharding(e, loop);
    status = sharding == NULL ? no_memory() : annotate(e, of, sharding);
    if (status == XM_OK) {
        status = annotate_state(e, loop, loop->body_computation, sharding);
    }
    if (status == XM_OK) {
        status = annotate_state(e, loop, loop->condition_computation, sharding);
    }
    free(sharding);
    return status;
}

static xm_status_t edit_instruction(exporter_t *e, const hlo_computation_t *in,
                                    const hlo_instruction_t *of)
{
    place_t place = {.in = in, .of = of};
    char sharding[AP_HLO_SHARDING_TEXT];
    ap_spec_t spec = AP_SPEC_REPLICATED;
    bool root = in->entry && of == &in->instructions[in->root];
    xm_status_t status = XM_OK;

    find_sites(e, &place);
    if (has_own_operators(of) && place.count > 0) {
        status = add_reshardings(e, &place);
    }
    if (status != XM_OK) {
        return status;
    }
    if (root) {
        return annotate_root(e, of);
    }
    if (hlo_slice_is(of->opcode, "while")) {
        return annotate_loop(e, of);
    }
    if (of->type->tuple || of->type->empty || !common_spec(e, &place, &spec)) {
        return XM_OK;
    }
    return annotate(
        e, of,
        ap_export_hlo_sharding(&e->mesh, spec, of->type->shape.rank, sharding, sizeof(sharding)));
}

static int by_place(const void *left, const void *right)
{
    const edit_t *a = left, *b = right;

    if (a->at != b->at) {
        return a->at < b->at ? -1 : 1;
    }
    return a->number < b->number ? -1 : a->number > b->number;
}

typedef struct site_key {
    size_t at;
    int site;
} site_key_t;

static int by_site(const void *left, const void *right)
{
    const site_key_t *a = left, *b = right;

    if (a->at != b->at) {
        return a->at < b->at ? -1 : 1;
    }
    return a->site < b->site ? -1 : a->site > b->site;
}

static xm_status_t sort_sites(exporter_t *e)
{
    size_t count = (size_t)e->source->site_count;
    site_key_t *keys = calloc(count + 1, sizeof(*keys));

    e->sites = calloc(count + 1, sizeof(*e->sites));
    if (keys == NULL || e->sites == NULL) {
        free(keys);
        return no_memory();
    }
    for (size_t i = 0; i < count; ++i) {
        keys[i] = (site_key_t){.at = e->source->sites[i].at, .site = (int)i};
    }
    qsort(keys, count, sizeof(*keys), by_site);
    for (size_t i = 0; i < count; ++i) {
        e->sites[i] = keys[i].site;
    }
    free(keys);
    return XM_OK;
}

static void write_edited(const exporter_t *e, FILE *stream)
{
    const hlo_text_t *text = &e->module->text;
    size_t at = 0;

    for (int i = 0; i < e->edit_count; ++i) {
        const edit_t *edit = &e->edits[i];

        (void)fwrite(text->bytes + at, 1, edit->at - at, stream);
        (void)fputs(edit->text, stream);
        at = edit->at + edit->length;
    }
    (void)fwrite(text->bytes + at, 1, text->size - at, stream);
}

xm_status_t ap_export_hlo(const ap_shard_solution_t *solution, const ap_frontend_notes_t *notes,
                          const char *text, size_t size, const char *name, FILE *stream)
{
    const hlo_text_t source = {.name = name, .bytes = text, .size = size};
    exporter_t e = {.solution = solution,
                    .source = ap_frontend_notes_source(notes),
                    .mesh = ap_export_mesh_of(solution->mesh)};
    hlo_module_t *module;
    xm_status_t status = hlo_module_parse(&source, &module);

    if (status != XM_OK) {
        return status;
    }
    e.module = module;
    status = sort_sites(&e);
    for (int c = 0; c < module->count; ++c) {
        const hlo_computation_t *in = &module->computations[c];

        for (int i = 0; i < in->count && status == XM_OK; ++i) {
            status = edit_instruction(&e, in, &in->instructions[i]);
        }
    }
    if (status == XM_OK) {
        if (e.edit_count > 0) {
            qsort(e.edits, (size_t)e.edit_count, sizeof(*e.edits), by_place);
        }
        write_edited(&e, stream);
    }
    for (int i = 0; i < e.edit_count; ++i) {
        free(e.edits[i].text);
    }
    free(e.edits);
    free(e.sites);
    hlo_module_destroy(module);
    return status;
}

xm_status_t ap_export_hlo_file(const ap_shard_solution_t *solution,
                               const ap_frontend_notes_t *notes, const char *path, FILE *stream)
{
    hlo_file_t file;
    xm_status_t status = hlo_file_map(path, &file);

    if (status != XM_OK) {
        return status;
    }
    status = ap_export_hlo(solution, notes, file.bytes, file.size, path, stream);
    hlo_file_unmap(&file);
    return status;
}
