/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/topology/xml.h"

#include <stdio.h>

#include "comm/topology/topology.h"
#include "xm_test.h"

#define SETS(cpus, nodes)                                                                          \
    " cpuset=\"" cpus "\" complete_cpuset=\"" cpus "\" nodeset=\"" nodes                           \
    "\" complete_nodeset=\"" nodes "\""

/* Two processors, one NUMA node, a device: each line can be replaced. */
static const char *const sound[] = {
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<topology version=\"2.0\">\n",
    "<object type=\"Machine\" os_index=\"0\"" SETS("0x3", "0x1") " gp_index=\"1\">\n",
    "<object type=\"NUMANode\" os_index=\"0\"" SETS("0x3", "0x1") " gp_index=\"2\"/>\n",
    "<object type=\"Core\" os_index=\"0\"" SETS("0x3", "0x1") " gp_index=\"3\">\n",
    "<object type=\"PU\" os_index=\"0\"" SETS("0x1", "0x1") " gp_index=\"4\"/>\n",
    "<object type=\"PU\" os_index=\"1\"" SETS("0x2", "0x1") " gp_index=\"5\"/>\n",
    "</object>\n",
    "<object type=\"Bridge\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[00-01]\">\n",
    "<info name=\"Note\" value=\"none\"/>\n",
    "</object>\n",
    "</object>\n</topology>\n",
};

enum { LINES = sizeof(sound) / sizeof(sound[0]), TEXT = 4096 };

static void write_with(int line, const char *instead, char text[TEXT])
{
    size_t used = 0;

    for (int i = 0; i < LINES; ++i) {
        used += (size_t)snprintf(text + used, TEXT - used, "%s", i == line ? instead : sound[i]);
    }
}

START_TEST(a_sound_text_is_accepted)
{
    char text[TEXT];
    xm_topology_t *topology;

    write_with(-1, "", text);
    ck_assert_xm_ok(xm_topology_check_xml("test", text));
    ck_assert_xm_ok(xm_topology_create_from_text(text, 0, &topology));
    ck_assert_int_eq(xm_topology_pus(topology), 2);
    xm_topology_destroy(topology);
    write_with(0, "<?xml encoding=\"utf-8\"?><topology version=\"2.0\">", text);
    ck_assert_xm_ok(xm_topology_check_xml("test", text));
    write_with(0, "<topology version=\"2.0\"><info name=\"encoding\" value=\"UTF-7\"/>", text);
    ck_assert_xm_ok(xm_topology_check_xml("test", text));
}
END_TEST

static const struct {
    int line;
    const char *instead, *sentence;
} wrong[] = {
    {1, "<object type=\"Package\" os_index=\"0\"" SETS("0x3", "0x1") ">\n",
     "line 3: not an hwloc topology: the outermost object is not one machine"},
    {1, "<object type=\"Xyz\" os_index=\"0\"" SETS("0x3", "0x1") ">\n", "of an unknown type"},
    {1, "<object os_index=\"0\"" SETS("0x3", "0x1") ">\n", "of an unknown type"},
    {2, "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x3\" nodeset=\"0x1\"/>\n",
     "line 4: not an hwloc topology: an object lacks a set of processors or nodes"},
    {2, "<object type=\"NUMANode\" os_index=\"1\"" SETS("0x3", "0x1") "/>\n",
     "a processor or NUMA node is not the one of its index"},
    {2, "<object type=\"NUMANode\"" SETS("0x3", "0x1") "/>\n",
     "a processor or NUMA node has no index"},
    {2, "<object type=\"NUMANode\" os_index=\"4294967296\"" SETS("0x3", "0x1") "/>\n",
     "is taken or too large"},
    {4, "<object type=\"PU\" os_index=\"0\"" SETS("0x3", "0x1") "/>\n",
     "a processor or NUMA node is not the one of its index"},
    {4, "<object type=\"PU\" os_index=\"1\"" SETS("0x2", "0x1") "/>\n",
     "line 7: not an hwloc topology: the index of a processor or NUMA node is taken"},
    {4, "<object type=\"PU\" os_index=\"2\"" SETS("0x4", "0x1") "/>\n",
     "an object is not inside its parent"},
    {4, "<object type=\"L1Cache\"" SETS("0x3", "0x1") "/>\n",
     "two objects beside each other overlap"},
    {4, "<object type=\"Machine\"" SETS("0x1", "0x1") "/>\n", "inside one that cannot hold it"},
    {4,
     "<object type=\"Core\" cpuset=\"0x1\" complete_cpuset=\"0x0\" nodeset=\"0x1\" "
     "complete_nodeset=\"0x1\"/>\n",
     "an object's set is not inside its complete set"},
    {4, "<object type=\"PU\" os_index=\"0\"" SETS("zwei", "0x1") "/>\n", "is no mask"},
    {4, "<object type=\"PU\" os_index=\"0\"" SETS("0x1,0x", "0x1") "/>\n", "is no mask"},
    {4, "<object type=\"PU\" os_index=\"0\"" SETS("0x10x1", "0x1") "/>\n", "is no mask"},
    {1, "<object type=\"Machine\"" SETS("0x3", "0x1") " allowed_cpuset=\"0x1;\">\n", "is no mask"},
    {5, "<object type=\"PU\" os_index=\"1\"" SETS("0x2", "0x1") ">\n", "an end tag without"},
    {6, "</objekt>\n", "line 8: not an hwloc topology: an end tag without its beginning"},
    {7,
     "<object type=\"OSDev\" name=\"eth0\" osdev_type=\"2\"><object "
     "type=\"PCIDev\"/></object><object "
     "type=\"Misc\">\n",
     "inside one that cannot hold it"},
    {7, "<object type=\"PCIDev\"" SETS("0x1", "0x1") ">\n",
     "a device has a set of processors or nodes"},
    {8, "<info name=\"Note\" value=\"<\"/>\n", "a tag has no end or no name"},
    {10, "</object>\n", "it ends early"},
    {10, "</object>\n<object type=\"Machine\"" SETS("0x1", "0x1") "/>\n</topology>\n",
     "the outermost object is not one machine"},
    {7, "<object type=\"OSDev\" osdev_type=\"2\">\n", "has no name"},
    {0, "", "end tag without its beginning"},
    {0, "<?xml version=\"1.0\" encoding=\"UTF-7\"?>\n<topology version=\"2.0\">\n",
     "line 1: not an hwloc topology: its encoding is not UTF-8"},
    {0, "<?xml version=\"1.0\" encoding='UTF-16'?>\n<topology version=\"2.0\">\n",
     "its encoding is not UTF-8"},
};

START_TEST(what_contradicts_itself_is_refused)
{
    char text[TEXT];
    xm_topology_t *topology = NULL;

    write_with(wrong[_i].line, wrong[_i].instead, text);
    ck_assert_xm_fails(xm_topology_check_xml("test", text), XM_ERR_PARSE, wrong[_i].sentence);
    ck_assert_xm_fails(xm_topology_create_from_text(text, 0, &topology), XM_ERR_PARSE,
                       wrong[_i].sentence);
    ck_assert_ptr_null(topology);
}
END_TEST

START_TEST(nesting_has_a_limit)
{
    enum { DEEP = 200 };
    char *text = calloc(1, DEEP * 16 + 64);

    ck_assert_ptr_nonnull(text);
    for (int i = 0; i < DEEP; ++i) {
        strcat(text, "<info>");
    }
    ck_assert_xm_fails(xm_topology_check_xml("test", text), XM_ERR_PARSE, "nested too deeply");
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("topology_xml");
    TCase *all = tcase_create("all");

    tcase_add_test(all, a_sound_text_is_accepted);
    tcase_add_loop_test(all, what_contradicts_itself_is_refused, 0,
                        (int)(sizeof(wrong) / sizeof(wrong[0])));
    tcase_add_test(all, nesting_has_a_limit);
    suite_add_tcase(suite, all);
    return xm_test_run(suite);
}
