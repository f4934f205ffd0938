/* SPDX-License-Identifier: Apache-2.0 */
/* A check of hwloc XML before hwloc reads it. hwloc trusts its input: a text that contradicts
 * itself (an object without its sets, a child that is not inside its parent) makes it read
 * where nothing is, and a set that is no mask ends the process; but topologies come from other
 * ranks and from users' files. So this reader accepts what hwloc writes and refuses the rest
 * with a line number. It knows just enough XML for that, and refuses any encoding under which
 * hwloc's parser could see other tags than it. */
#include "comm/topology/xml.h"

#include <hwloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_DEPTH = 64, NAME = 32, VALUE = 4096, ELEMENT_ATTRIBUTES = 32, HIGHEST_INDEX = 1 << 16 };

/* The kinds of objects in hwloc, which nest by different rules. */
typedef enum { NORMAL, MEMORY, IO, MISC } kind_t;

enum { CPUSET, COMPLETE_CPUSET, NODESET, COMPLETE_NODESET, SETS };

static const char *const set_names[SETS] = {"cpuset", "complete_cpuset", "nodeset",
                                            "complete_nodeset"};

/* An element that is open. */
typedef struct {
    char name[NAME];
    bool object;
    kind_t kind;
    hwloc_obj_type_t type;
    hwloc_bitmap_t sets[SETS]; /* NULL: it has none */
    hwloc_bitmap_t
        children[2]; /* processors of its normal children, nodes of its memory children */
} level_t;

/* One tag: where its attributes begin, and what it is. */
typedef struct {
    char name[NAME];
    const char *attributes, *end; /* of the tag's text, without < and > */
    bool closes, closed;          /* </name>, <name/> */
} tag_t;

typedef struct {
    const char *source, *xml;
    level_t levels[MAX_DEPTH];
    int depth;
    bool old; /* format 1: fewer sets, and NUMA nodes have children */
    bool has_root;
    hwloc_bitmap_t pus, nodes; /* OS indices that were seen */
} reader_t;

/* The line number is counted only now: good texts pay nothing for it. */
static xm_status_t refuse(const reader_t *reader, const char *at, const char *what)
{
    int line = 1;

    for (const char *c = reader->xml; c < at; ++c) {
        line += *c == '\n';
    }
    return XM_MALFORMED("%s: line %d: not an hwloc topology: %s", reader->source, line, what);
}

/* The value of an attribute of a tag; false: it has none, or too long a one. */
static bool attribute(const tag_t *tag, const char *name, char value[VALUE])
{
    size_t wanted = strlen(name);

    for (const char *at = tag->attributes; at < tag->end;) {
        const char *word = at + strspn(at, " \t\r\n");
        size_t length = strcspn(word, "= \t\r\n\"/>");
        const char *open = word + length, *close;

        if (open + 2 > tag->end || open[0] != '=' || open[1] != '"' ||
            (close = memchr(open + 2, '"', (size_t)(tag->end - open - 2))) == NULL) {
            return false;
        }
        if (length == wanted && memcmp(word, name, wanted) == 0) {
            size_t size = (size_t)(close - open - 2);

            if (size >= VALUE) {
                return false;
            }
            memcpy(value, open + 2, size);
            value[size] = '\0';
            return true;
        }
        at = close + 1;
    }
    return false;
}

/* Reads the tag that begins at @p at, a '<'. Its values hold no '<' or '>'. */
static bool read_tag(const char *at, tag_t *tag)
{
    size_t length;

    tag->end = at + 1 + strcspn(at + 1, "<>");
    if (*tag->end != '>') {
        return false;
    }
    tag->closes = at[1] == '/';
    at += tag->closes ? 2 : 1;
    length = strcspn(at, " \t\r\n/>");
    if (length == 0 || length >= NAME) {
        return false;
    }
    memcpy(tag->name, at, length);
    tag->name[length] = '\0';
    tag->attributes = at + length;
    tag->closed = tag->end[-1] == '/';
    if (tag->closed) {
        --tag->end;
    }
    return true;
}

/* Closes a level and clears it, so that closing again does no harm. */
static void leave(level_t *level)
{
    for (int s = 0; s < SETS; ++s) {
        hwloc_bitmap_free(level->sets[s]);
    }
    hwloc_bitmap_free(level->children[0]);
    hwloc_bitmap_free(level->children[1]);
    *level = (level_t){.object = false};
}

/* Format 1 had other names for some types. */
static bool kind_of(const reader_t *reader, const char *name, level_t *level)
{
    if (reader->old && (strcmp(name, "Cache") == 0 || strcmp(name, "Socket") == 0 ||
                        strcmp(name, "System") == 0)) {
        level->type = strcmp(name, "System") == 0 ? HWLOC_OBJ_MACHINE : HWLOC_OBJ_GROUP;
        level->kind = NORMAL;
        return true;
    }
    if (hwloc_type_sscanf(name, &level->type, NULL, 0) < 0) {
        return false;
    }
    level->kind = hwloc_obj_type_is_io(level->type)       ? IO
                  : level->type == HWLOC_OBJ_MISC         ? MISC
                  : reader->old                           ? NORMAL
                  : hwloc_obj_type_is_memory(level->type) ? MEMORY
                                                          : NORMAL;
    return true;
}

/* True for a set as hwloc writes it: words of 32 bits, the highest first, those that are 0 left
 * out: "0x00000001,,0x000000ff"; "0xf...f" in front says that all higher ones are set. hwloc
 * stops the process where a text is anything else. */
static bool is_mask(const char *text)
{
    static const char infinite[] = "0xf...f";
    bool good = text[0] != '\0';

    if (strncmp(text, infinite, sizeof(infinite) - 1) == 0) {
        text += sizeof(infinite) - 1;
        if (*text == '\0') {
            return true;
        }
        good = *text++ == ',';
    }
    while (good) {
        size_t digits = strncmp(text, "0x", 2) == 0 ? strspn(text + 2, "0123456789abcdef") : 0;

        good = digits > 0 ? digits <= 8 : *text == ',';
        text += digits > 0 ? digits + 2 : 0;
        if (*text == '\0') {
            return good;
        }
        good = good && *text++ == ',';
    }
    return false;
}

/* Checks the sets of any element, those that nothing here needs included, because hwloc parses
 * them all. */
static xm_status_t check_masks(const reader_t *reader, const char *at, const tag_t *tag)
{
    static const char *const names[] = {"cpuset",         "complete_cpuset", "online_cpuset",
                                        "allowed_cpuset", "nodeset",         "complete_nodeset",
                                        "allowed_nodeset"};
    char value[VALUE];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
        if (attribute(tag, names[i], value) && !is_mask(value)) {
            return refuse(reader, at, "a set of processors or nodes is no mask");
        }
    }
    return XM_OK;
}

static xm_status_t read_sets(const reader_t *reader, const char *at, const tag_t *tag,
                             level_t *level)
{
    char value[VALUE];

    for (int s = 0; s < SETS; ++s) {
        if (!attribute(tag, set_names[s], value)) {
            continue;
        }
        level->sets[s] = hwloc_bitmap_alloc();
        if (level->sets[s] == NULL) {
            return xm_error_set(XM_ERR_NO_MEMORY, "topology: out of memory");
        }
        if (hwloc_bitmap_sscanf(level->sets[s], value) != 0) {
            return refuse(reader, at, "a set of processors or nodes is no mask");
        }
    }
    return XM_OK;
}

static bool is_within(hwloc_const_bitmap_t inner, hwloc_const_bitmap_t outer)
{
    return inner == NULL || (outer != NULL && hwloc_bitmap_isincluded(inner, outer));
}

/* An object has all its sets or none, and they lie in its parent's. */
static xm_status_t check_sets(const reader_t *reader, const char *at, const level_t *level,
                              const level_t *parent)
{
    bool sets = level->kind == NORMAL || level->kind == MEMORY;
    int needed = reader->old ? COMPLETE_CPUSET : COMPLETE_NODESET;

    for (int s = 0; s < SETS; ++s) {
        if (sets && s <= needed && level->sets[s] == NULL) {
            return refuse(reader, at, "an object lacks a set of processors or nodes");
        }
        if (!sets && level->sets[s] != NULL) {
            return refuse(reader, at, "a device has a set of processors or nodes");
        }
        if (sets && parent != NULL && !is_within(level->sets[s], parent->sets[s]) &&
            parent->sets[s] != NULL) {
            return refuse(reader, at, "an object is not inside its parent");
        }
    }
    if (!is_within(level->sets[CPUSET], level->sets[COMPLETE_CPUSET]) ||
        (level->sets[COMPLETE_NODESET] != NULL &&
         !is_within(level->sets[NODESET], level->sets[COMPLETE_NODESET]))) {
        return refuse(reader, at, "an object's set is not inside its complete set");
    }
    return XM_OK;
}

/* Processors and nodes have an index of their own, which is what their set holds, and no two
 * have the same. */
static xm_status_t check_index(const reader_t *reader, const char *at, const tag_t *tag,
                               const level_t *level)
{
    bool pu = level->type == HWLOC_OBJ_PU;
    hwloc_const_bitmap_t set = level->sets[pu ? COMPLETE_CPUSET : COMPLETE_NODESET];
    hwloc_bitmap_t seen = pu ? reader->pus : reader->nodes;
    char value[VALUE];
    unsigned long index;

    if (!pu && level->type != HWLOC_OBJ_NUMANODE) {
        return XM_OK;
    }
    if (!attribute(tag, "os_index", value) || value[0] < '0' || value[0] > '9') {
        return refuse(reader, at, "a processor or NUMA node has no index");
    }
    index = strtoul(value, NULL, 10);
    if (index >= HIGHEST_INDEX || hwloc_bitmap_isset(seen, (unsigned)index) ||
        hwloc_bitmap_set(seen, (unsigned)index) != 0) {
        return refuse(reader, at, "the index of a processor or NUMA node is taken or too large");
    }
    if (set != NULL && (hwloc_bitmap_weight(set) != 1 || hwloc_bitmap_first(set) != (int)index)) {
        return refuse(reader, at, "a processor or NUMA node is not the one of its index");
    }
    return XM_OK;
}

/* Normal siblings share no processor, memory siblings no node. */
static xm_status_t check_siblings(const reader_t *reader, const char *at, const level_t *level,
                                  level_t *parent)
{
    int which = level->kind == MEMORY;
    hwloc_const_bitmap_t own = level->sets[which ? NODESET : CPUSET];

    if (level->kind > MEMORY || own == NULL) {
        return XM_OK;
    }
    if (parent->children[which] == NULL &&
        (parent->children[which] = hwloc_bitmap_alloc()) == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "topology: out of memory");
    }
    if (hwloc_bitmap_intersects(own, parent->children[which])) {
        return refuse(reader, at, "two objects beside each other overlap");
    }
    return hwloc_bitmap_or(parent->children[which], parent->children[which], own) == 0
               ? XM_OK
               : xm_error_set(XM_ERR_NO_MEMORY, "topology: out of memory");
}

/* Says which objects may be inside which. */
static bool may_hold(const level_t *parent, const level_t *level)
{
    switch (level->kind) {
    case NORMAL:
        return parent->kind == NORMAL && parent->type != HWLOC_OBJ_PU &&
               level->type != HWLOC_OBJ_MACHINE;
    case MEMORY:
        return parent->type != HWLOC_OBJ_NUMANODE &&
               (parent->kind == NORMAL || parent->type == HWLOC_OBJ_MEMCACHE);
    case IO:
        return parent->kind == NORMAL ||
               (parent->kind == IO && parent->type != HWLOC_OBJ_OS_DEVICE);
    case MISC:
        break;
    }
    return true;
}

/* Checks an object when it begins. Its sets stay with the level until it ends, for its children
 * are compared with them. */
static xm_status_t enter_object(reader_t *reader, const char *at, const tag_t *tag, level_t *level)
{
    level_t *parent = reader->depth > 0 ? &reader->levels[reader->depth - 1] : NULL;
    char value[VALUE];
    xm_status_t status;

    if (!attribute(tag, "type", value) || !kind_of(reader, value, level)) {
        return refuse(reader, at, "an object of an unknown type");
    }
    if (level->type == HWLOC_OBJ_OS_DEVICE && !attribute(tag, "name", value)) {
        return refuse(reader, at, "a device of the operating system has no name");
    }
    level->object = true;
    if (parent != NULL && parent->object) {
        if (!may_hold(parent, level)) {
            return refuse(reader, at, "an object is inside one that cannot hold it");
        }
    } else {
        if (reader->has_root || level->type != HWLOC_OBJ_MACHINE) {
            return refuse(reader, at, "the outermost object is not one machine");
        }
        reader->has_root = true;
        parent = NULL;
    }
    status = read_sets(reader, at, tag, level);
    XM_THEN(status, check_sets(reader, at, level, parent));
    XM_THEN(status, check_index(reader, at, tag, level));
    return status == XM_OK && parent != NULL ? check_siblings(reader, at, level, parent) : status;
}

/* Enters any element; those that are no objects are only counted for nesting. */
static xm_status_t enter(reader_t *reader, const char *at, const tag_t *tag)
{
    level_t *level = &reader->levels[reader->depth];
    char version[VALUE];
    xm_status_t status = XM_OK;

    if (reader->depth == MAX_DEPTH - 1) {
        return refuse(reader, at, "objects are nested too deeply");
    }
    (void)snprintf(level->name, sizeof(level->name), "%s", tag->name);
    XM_TRY(check_masks(reader, at, tag));
    if (strcmp(tag->name, "topology") == 0) {
        reader->old = !attribute(tag, "version", version) || version[0] == '1';
    } else if (strcmp(tag->name, "object") == 0) {
        status = enter_object(reader, at, tag, level);
    }
    if (status < 0 || tag->closed) {
        leave(level);
        return status;
    }
    ++reader->depth;
    return XM_OK;
}

/* True for UTF-8, which is what hwloc writes. The parser behind hwloc decodes as the text's
 * first line says, and might find objects where this reader saw none. */
static bool is_utf8(const char *declaration)
{
    static const char right[] = "encoding=\"UTF-8\"";
    const char *encoding = strstr(declaration, "encoding");

    return encoding == NULL || encoding > declaration + strcspn(declaration, ">") ||
           strncasecmp(encoding, right, sizeof(right) - 1) == 0;
}

/* One pass over all tags with a stack of levels; the text is never copied. */
static xm_status_t read_all(reader_t *reader)
{
    const char *at = reader->xml;

    while ((at = strchr(at, '<')) != NULL) {
        xm_status_t status = XM_OK;
        tag_t tag;

        if (at[1] == '?' && !is_utf8(at)) {
            return refuse(reader, at, "its encoding is not UTF-8");
        }
        if (at[1] == '?' || at[1] == '!') {
            at += strcspn(at, ">");
            continue;
        }
        if (!read_tag(at, &tag)) {
            return refuse(reader, at, "a tag has no end or no name");
        }
        if (!tag.closes) {
            status = enter(reader, at, &tag);
        } else if (reader->depth == 0 ||
                   strcmp(reader->levels[reader->depth - 1].name, tag.name) != 0) {
            status = refuse(reader, at, "an end tag without its beginning");
        } else {
            leave(&reader->levels[--reader->depth]);
        }
        XM_TRY(status);
        at = tag.end;
    }
    if (reader->depth > 0 || !reader->has_root) {
        return refuse(reader, reader->xml + strlen(reader->xml), "it ends early");
    }
    return XM_OK;
}

/* Checks a whole text. Levels that are open after a failure are closed here. */
xm_status_t xm_topology_check_xml(const char *source, const char *xml)
{
    reader_t *reader = calloc(1, sizeof(*reader));
    xm_status_t status;

    if (reader == NULL) {
        return xm_error_set(XM_ERR_NO_MEMORY, "topology: out of memory");
    }
    reader->source = source;
    reader->xml = xml;
    reader->pus = hwloc_bitmap_alloc();
    reader->nodes = hwloc_bitmap_alloc();
    status = reader->pus != NULL && reader->nodes != NULL
                 ? read_all(reader)
                 : xm_error_set(XM_ERR_NO_MEMORY, "topology: out of memory");
    while (reader->depth > 0) {
        leave(&reader->levels[--reader->depth]);
    }
    hwloc_bitmap_free(reader->pus);
    hwloc_bitmap_free(reader->nodes);
    free(reader);
    return status;
}
