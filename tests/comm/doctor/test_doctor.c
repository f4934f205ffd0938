/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/doctor/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/doctor/compare.h"
#include "comm/doctor/doctor_private.h"
#include "xm_test.h"

enum { EXPECTED = 64, LINE = 2048 };

typedef struct {
    char subject[XM_FINDING_SUBJECT];
    char severity[16]; /* "-": no such finding */
} expected_t;

/* A machine as tests/fixtures/doctor/healthy.tree describes the format. */
typedef struct {
    char root[64];
    char topology[128];
    xm_doctor_facts_t facts;
    xm_doctor_params_t params;
    expected_t expected[EXPECTED];
    int count;
} machine_t;

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *place)
{
    (void)status;
    (void)type;
    (void)place;
    return remove(path);
}

static void remove_all(const char *path)
{
    ck_assert_int_eq(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static void write_file(const machine_t *machine, const char *path, const char *content)
{
    char full[PATH_MAX], *slash;
    FILE *file;

    (void)snprintf(full, sizeof(full), "%s/%s", machine->root, path);
    for (slash = strchr(full + strlen(machine->root) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        ck_assert(mkdir(full, 0755) == 0 || errno == EEXIST);
        *slash = '/';
    }
    file = fopen(full, "w");
    ck_assert_ptr_nonnull(file);
    for (const char *c = content; *c != '\0'; ++c) {
        if (c[0] == '\\' && (c[1] == 'n' || c[1] == 't')) {
            (void)fputc(*++c == 'n' ? '\n' : '\t', file);
        } else {
            (void)fputc(*c, file);
        }
    }
    (void)fputc('\n', file);
    ck_assert_int_eq(fclose(file), 0);
}

static void remove_entry(const machine_t *machine, const char *path)
{
    char full[PATH_MAX];

    (void)snprintf(full, sizeof(full), "%s/%s", machine->root, path);
    ck_assert_int_eq(access(full, F_OK), 0);
    remove_all(full);
}

/* The rest of a line that begins with the words, or NULL. */
static const char *after(const char *line, const char *words)
{
    size_t length = strlen(words);

    return strncmp(line, words, length) == 0 ? line + length : NULL;
}

static void set_port(xm_doctor_facts_t *facts, const char *text)
{
    char name[XM_DOCTOR_NAME_SIZE];
    int mtu, max_mtu, at = 0;

    ck_assert_int_eq(sscanf(text, "%63s %d %d", name, &mtu, &max_mtu), 3);
    while (at < facts->ports && strcmp(facts->port[at].name, name) != 0) {
        ++at;
    }
    facts->ports = at == facts->ports ? at + 1 : facts->ports;
    (void)snprintf(facts->port[at].name, sizeof(facts->port[at].name), "%s", name);
    facts->port[at].mtu = mtu;
    facts->port[at].max_mtu = max_mtu;
}

static void set_fact(xm_doctor_facts_t *facts, const char *fact)
{
    const char *value;

    if ((value = after(fact, "port ")) != NULL) {
        set_port(facts, value);
    } else if (after(fact, "no_ports") != NULL) {
        facts->ports = 0;
    } else if ((value = after(fact, "clock_resolution ")) != NULL) {
        facts->clock_resolution = atof(value);
    } else if ((value = after(fact, "clock_known ")) != NULL) {
        facts->clock_known = atoi(value) != 0;
    } else if ((value = after(fact, "clock_synchronised ")) != NULL) {
        facts->clock_synchronised = atoi(value) != 0;
    } else if ((value = after(fact, "clock_error ")) != NULL) {
        facts->clock_error = atof(value);
    } else if ((value = after(fact, "has_shm ")) != NULL) {
        facts->has_shm = atoi(value) != 0;
    } else if ((value = after(fact, "shm_size ")) != NULL) {
        facts->shm_size = strtoull(value, NULL, 10);
    } else if ((value = after(fact, "shm_free ")) != NULL) {
        facts->shm_free = strtoull(value, NULL, 10);
    } else if ((value = after(fact, "memfd ")) != NULL) {
        facts->memfd = atoi(value) != 0;
    } else if ((value = after(fact, "ucx_version ")) != NULL) {
        (void)snprintf(facts->ucx_version, sizeof(facts->ucx_version), "%s", value);
    } else if ((value = after(fact, "ucx_transports")) != NULL) {
        (void)snprintf(facts->ucx_transports, sizeof(facts->ucx_transports), "%s",
                       value + (*value == ' '));
    } else if ((value = after(fact, "ucx_failure ")) != NULL) {
        (void)snprintf(facts->ucx_failure, sizeof(facts->ucx_failure), "%s", value);
    } else if ((value = after(fact, "settings ")) != NULL) {
        (void)snprintf(facts->settings, sizeof(facts->settings), "%s", value);
    } else {
        ck_abort_msg("no fact '%s'", fact);
    }
}

static void set_param(xm_doctor_params_t *params, const char *param)
{
    const char *value;

    if ((value = after(param, "ranks ")) != NULL) {
        params->ranks = atoi(value);
    } else if ((value = after(param, "local_ranks ")) != NULL) {
        params->local_ranks = atoi(value);
    } else if ((value = after(param, "verbs ")) != NULL) {
        params->verbs = atoi(value) != 0;
    } else if ((value = after(param, "spin ")) != NULL) {
        params->spin = atoi(value) != 0;
    } else {
        ck_abort_msg("no parameter '%s'", param);
    }
}

static expected_t *find_expected(machine_t *machine, const char *subject)
{
    int at = 0;

    while (at < machine->count && strcmp(machine->expected[at].subject, subject) != 0) {
        ++at;
    }
    return at < machine->count ? &machine->expected[at] : NULL;
}

static void expect(machine_t *machine, const char *text)
{
    char severity[16];
    int length;
    expected_t *expected;

    ck_assert_int_eq(sscanf(text, "%15s %n", severity, &length), 1);
    expected = find_expected(machine, text + length);
    if (expected == NULL) {
        ck_assert_int_lt(machine->count, EXPECTED);
        expected = &machine->expected[machine->count++];
        (void)snprintf(expected->subject, sizeof(expected->subject), "%s", text + length);
    }
    (void)snprintf(expected->severity, sizeof(expected->severity), "%s",
                   strcmp(severity, "not_here") == 0 ? "not here" : severity);
}

static void take_line(machine_t *machine, char *line)
{
    char *equals = strstr(line, " = ");
    const char *value;
    size_t length = strlen(line);

    if (line[0] == '#' || line[0] == '\0') {
        return;
    }
    if ((value = after(line, "expect ")) != NULL) {
        expect(machine, value);
    } else if ((value = after(line, "fact ")) != NULL) {
        set_fact(&machine->facts, value);
    } else if ((value = after(line, "param ")) != NULL) {
        set_param(&machine->params, value);
    } else if ((value = after(line, "topology ")) != NULL) {
        (void)snprintf(machine->topology, sizeof(machine->topology), "tests/fixtures/hwloc/%s",
                       value);
    } else if ((value = after(line, "remove ")) != NULL) {
        remove_entry(machine, value);
    } else if (length > 2 && strcmp(line + length - 2, " -") == 0) {
        line[length - 2] = '\0';
        remove_entry(machine, line);
    } else {
        ck_assert_msg(equals != NULL, "'%s' is nothing", line);
        *equals = '\0';
        write_file(machine, line, equals + 3);
    }
}

static void load(machine_t *machine, const char *name)
{
    char path[256], line[LINE];
    FILE *file;

    (void)snprintf(path, sizeof(path), "tests/fixtures/doctor/%s", name);
    file = fopen(xm_test_source_path(path), "r");
    ck_assert_msg(file != NULL, "%s", path);
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        take_line(machine, line);
    }
    ck_assert_int_eq(fclose(file), 0);
}

static void begin(machine_t *machine)
{
    /* Thousands of small files are made: in memory, where that can be. */
    *machine =
        (machine_t){.root = "/dev/shm/xm_test_doctor.XXXXXX", .params = XM_DOCTOR_PARAMS_INIT};
    if (mkdtemp(machine->root) == NULL) {
        (void)snprintf(machine->root, sizeof(machine->root), "/tmp/xm_test_doctor.XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(machine->root));
    }
    load(machine, "healthy.tree");
}

static xm_findings_t *examine(machine_t *machine)
{
    xm_topology_t *topology;
    xm_findings_t *findings;

    ck_assert_xm_ok(xm_topology_create(xm_test_source_path(machine->topology), 0, &topology));
    machine->params.root = machine->root;
    machine->params.facts = &machine->facts;
    machine->params.topology = topology;
    ck_assert_xm_ok(xm_doctor_examine(&machine->params, &findings));
    xm_topology_destroy(topology);
    return findings;
}

/* Each finding is expected, and each one that is expected is there, once. */
static void compare(const char *name, machine_t *machine, const xm_findings_t *findings)
{
    for (int i = 0; i < xm_findings_count(findings); ++i) {
        const xm_finding_t *finding = xm_findings_get(findings, i);
        const expected_t *expected = find_expected(machine, finding->subject);

        ck_assert_msg(expected != NULL, "%s: nobody expects '%s'", name, finding->subject);
        ck_assert_msg(strcmp(expected->severity, xm_severity_name(finding->severity)) == 0,
                      "%s: %s: %s (%s), expected %s", name, finding->subject,
                      xm_severity_name(finding->severity), finding->text, expected->severity);
        ck_assert_msg(finding->text[0] != '\0', "%s: %s has no text", name, finding->subject);
        ck_assert_msg((finding->advice[0] != '\0') == (finding->severity >= XM_SEVERITY_WARN),
                      "%s: %s: advice '%s'", name, finding->subject, finding->advice);
        /* Advice is whole. */
        ck_assert_msg(finding->advice[0] == '\0' ||
                          finding->advice[strlen(finding->advice) - 1] == '.',
                      "%s: %s: advice '%s'", name, finding->subject, finding->advice);
    }
    for (int i = 0; i < machine->count; ++i) {
        int found = 0;

        for (int j = 0; j < xm_findings_count(findings); ++j) {
            found +=
                strcmp(xm_findings_get(findings, j)->subject, machine->expected[i].subject) == 0;
        }
        ck_assert_msg(found == (strcmp(machine->expected[i].severity, "-") != 0),
                      "%s: '%s' was found %d times", name, machine->expected[i].subject, found);
    }
}

START_TEST(each_fault_is_found_and_no_other)
{
    DIR *directory = opendir(xm_test_source_path("tests/fixtures/doctor"));
    int count = 0;

    ck_assert_ptr_nonnull(directory);
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        machine_t machine;
        xm_findings_t *findings;

        if (strstr(entry->d_name, ".tree") == NULL) {
            continue;
        }
        begin(&machine);
        if (strcmp(entry->d_name, "healthy.tree") != 0) {
            load(&machine, entry->d_name);
        }
        findings = examine(&machine);
        compare(entry->d_name, &machine, findings);
        xm_findings_destroy(findings);
        remove_all(machine.root);
        ++count;
    }
    ck_assert_int_eq(closedir(directory), 0);
    ck_assert_int_ge(count, 30);
}
END_TEST

static const xm_finding_t *find(const xm_findings_t *findings, const char *subject)
{
    for (int i = 0; i < xm_findings_count(findings); ++i) {
        if (strcmp(xm_findings_get(findings, i)->subject, subject) == 0) {
            return xm_findings_get(findings, i);
        }
    }
    ck_abort_msg("no finding '%s'", subject);
}

START_TEST(findings_have_the_numbers)
{
    machine_t machine;
    xm_findings_t *findings;

    begin(&machine);
    load(&machine, "mtu-port-larger.tree");
    load(&machine, "nic-distance.tree");
    load(&machine, "tcp-buffers.tree");
    load(&machine, "cores-shared.tree");
    findings = examine(&machine);
    ck_assert_str_eq(find(findings, "MTU of mlx5_0:1")->text,
                     "packets of 4096 bytes, but eth0 takes 1500");
    ck_assert_str_eq(find(findings, "interface MTUs")->text, "eth0 1500, eth1 9000: not equal");
    ck_assert_str_eq(find(findings, "NIC distance")->text,
                     "0000:92:00.0, 0000:94:00.0: every NIC is behind the link between processors");
    ck_assert_str_eq(find(findings, "TCP buffers")->text,
                     "grow to 4.00 MiB; 11.92 MiB are under way in 1 ms at 100 Gbit/s");
    ck_assert_str_eq(find(findings, "cores")->text, "2 for 8 local ranks");
    ck_assert_str_eq(find(findings, "UCX")->text,
                     "1.13.1 offers self tcp rc_verbs rc_mlx5 dc_mlx5 ud_mlx5 sysv posix cma");
    ck_assert_str_eq(find(findings, "open files")->text, "1048576; a job of 16 ranks may need 224");
    xm_findings_destroy(findings);
    remove_all(machine.root);
}
END_TEST

/* An empty root: nothing can be read, and nothing goes wrong. */
START_TEST(a_machine_that_tells_nothing)
{
    char root[] = "/tmp/xm_test_doctor.XXXXXX";
    xm_doctor_facts_t facts = {0};
    xm_doctor_params_t params = XM_DOCTOR_PARAMS_INIT;
    xm_findings_t *findings;

    ck_assert_ptr_nonnull(mkdtemp(root));
    params.root = root;
    params.facts = &facts;
    ck_assert_xm_ok(xm_doctor_examine(&params, &findings));
    ck_assert_int_eq(find(findings, "cores")->severity, XM_SEVERITY_ABSENT);
    ck_assert_int_eq(find(findings, "clock source")->severity, XM_SEVERITY_ABSENT);
    ck_assert_int_eq(find(findings, "TCP buffers")->severity, XM_SEVERITY_ABSENT);
    xm_findings_destroy(findings);
    params.local_ranks = 2;
    ck_assert_xm_fails(xm_doctor_examine(&params, &findings), XM_ERR_INVALID_ARGUMENT,
                       "2 of 1 ranks");
    ck_assert_int_eq(rmdir(root), 0);
}
END_TEST

START_TEST(this_machine_can_be_examined)
{
    xm_doctor_facts_t facts;
    xm_doctor_params_t params = XM_DOCTOR_PARAMS_INIT;
    xm_findings_t *findings;

    xm_doctor_facts_read(&facts);
    ck_assert_str_eq(facts.ucx_failure, "");
    ck_assert_msg(strstr(facts.ucx_transports, "self") != NULL, "%s", facts.ucx_transports);
    ck_assert_double_gt(facts.clock_resolution, 0);
    params.facts = &facts;
    ck_assert_xm_ok(xm_doctor_examine(&params, &findings));
    ck_assert_int_ne(find(findings, "cores")->severity, XM_SEVERITY_ABSENT);
    ck_assert_int_eq(find(findings, "settings")->severity, XM_SEVERITY_OK);
    xm_findings_destroy(findings);
}
END_TEST

static int count_list(const char *text)
{
    bool marks[16] = {false};
    int count = 0;

    if (!xm_doctor_mark_list(text, marks, 16)) {
        return -1;
    }
    for (int i = 0; i < 16; ++i) {
        count += marks[i];
    }
    return count;
}

START_TEST(lists_of_the_kernel_are_read)
{
    ck_assert_int_eq(count_list("0-15"), 16);
    ck_assert_int_eq(count_list("0,2,4-5"), 4);
    ck_assert_int_eq(count_list("7"), 1);
    ck_assert_int_eq(count_list("1-3,2-4"), 4);
    ck_assert_int_eq(count_list(""), -1);
    ck_assert_int_eq(count_list("3-1"), -1);
    ck_assert_int_eq(count_list("0-"), -1);
    ck_assert_int_eq(count_list("0,x"), -1);
    ck_assert_int_eq(count_list("16"), -1);
    ck_assert_int_eq(count_list("-1"), -1);
}
END_TEST

/* A launcher's binding gives each rank a core of its own. */
START_TEST(bound_ranks_have_their_cores_together)
{
    machine_t machine;
    xm_findings_t *findings;

    begin(&machine);
    load(&machine, "cores-shared.tree");
    machine.params.local_cores = 8;
    findings = examine(&machine);
    ck_assert_str_eq(find(findings, "cores")->text, "8 for 8 local ranks");
    ck_assert_int_eq(find(findings, "cores")->severity, XM_SEVERITY_OK);
    xm_findings_destroy(findings);
    remove_all(machine.root);
}
END_TEST

/* ---- between ranks ---- */

enum { RANKS = 4 };

static void fill(xm_card_t *cards)
{
    static const char *const hosts[RANKS] = {"a", "a", "b", "b"};

    for (int rank = 0; rank < RANKS; ++rank) {
        cards[rank] = (xm_card_t){.offset_ns = 2000, .uncertainty_ns = 50000};
        (void)snprintf(cards[rank].host, sizeof(cards[rank].host), "%s", hosts[rank]);
        (void)snprintf(cards[rank].text[XM_ASPECT_UCX], XM_CARD_TEXT_SIZE, "1.13.1");
        (void)snprintf(cards[rank].text[XM_ASPECT_SETTINGS], XM_CARD_TEXT_SIZE,
                       "XM_TIMEOUT=30 XM_WINDOW=2");
        (void)snprintf(cards[rank].text[XM_ASPECT_MTU], XM_CARD_TEXT_SIZE, "9000");
    }
}

START_TEST(the_odd_rank_is_named)
{
    xm_card_t cards[RANKS];
    xm_findings_t *findings;

    fill(cards);
    (void)snprintf(cards[2].text[XM_ASPECT_UCX], XM_CARD_TEXT_SIZE, "1.12.0");
    (void)snprintf(cards[0].text[XM_ASPECT_SETTINGS], XM_CARD_TEXT_SIZE,
                   "XM_TIMEOUT=30 XM_WINDOW=4");
    cards[1].text[XM_ASPECT_MTU][0] = '\0';
    cards[3].offset_ns = -7000000000;
    ck_assert_xm_ok(xm_findings_create(&findings));
    ck_assert(xm_doctor_compare(cards, RANKS, findings));
    ck_assert_str_eq(find(findings, "UCX on all ranks")->text,
                     "1.13.1 on 3 ranks; rank 2 (b) has 1.12.0");
    ck_assert_int_eq(find(findings, "UCX on all ranks")->severity, XM_SEVERITY_WARN);
    ck_assert_str_eq(find(findings, "settings on all ranks")->text, "rank 0 (a) has XM_WINDOW=4");
    ck_assert_int_eq(find(findings, "settings on all ranks")->severity, XM_SEVERITY_FAIL);
    ck_assert_str_eq(find(findings, "interface MTUs on all hosts")->text,
                     "9000 on 3 ranks; rank 1 (a) has none");
    ck_assert_str_eq(find(findings, "clocks of the hosts")->text,
                     "rank 3 (b) is 7.00 s ahead of rank 0 (a), to within 50.0 us");
    ck_assert_int_eq(find(findings, "clocks of the hosts")->severity, XM_SEVERITY_WARN);
    /* Nobody has an NVIDIA driver. */
    ck_assert_int_eq(xm_findings_count(findings), 4);
    xm_findings_destroy(findings);
}
END_TEST

START_TEST(equal_ranks_are_well)
{
    xm_card_t cards[RANKS];
    xm_findings_t *findings;

    fill(cards);
    ck_assert_xm_ok(xm_findings_create(&findings));
    ck_assert(xm_doctor_compare(cards, RANKS, findings));
    for (int i = 0; i < xm_findings_count(findings); ++i) {
        ck_assert_int_eq(xm_findings_get(findings, i)->severity, XM_SEVERITY_OK);
    }
    ck_assert_str_eq(find(findings, "UCX on all ranks")->text, "1.13.1");
    xm_findings_destroy(findings);
    ck_assert_xm_ok(xm_findings_create(&findings));
    ck_assert(xm_doctor_compare(cards, 2, findings));
    ck_assert_int_eq(find(findings, "clocks of the hosts")->severity, XM_SEVERITY_ABSENT);
    xm_findings_destroy(findings);
}
END_TEST

START_TEST(records_survive_the_wire_and_rubbish_does_not)
{
    static uint8_t card_bytes[XM_CARD_SIZE], finding_bytes[XM_FINDING_SIZE];
    xm_card_t cards[RANKS], card;
    xm_finding_t finding = {.severity = XM_SEVERITY_WARN,
                            .subject = "port x",
                            .text = "found",
                            .advice = "do."},
                 other;

    fill(cards);
    cards[1].offset_ns = INT64_MIN;
    xm_card_encode(&cards[1], card_bytes);
    ck_assert(xm_card_decode(card_bytes, sizeof(card_bytes), &card));
    ck_assert_int_eq(memcmp(&card, &cards[1], sizeof(card)), 0);
    ck_assert(!xm_card_decode(card_bytes, sizeof(card_bytes) - 1, &card));
    card_bytes[XM_CARD_HOST_SIZE - 1] = 'x'; /* behind the end of the host's name */
    ck_assert(!xm_card_decode(card_bytes, sizeof(card_bytes), &card));
    memset(card_bytes, 'x', sizeof(card_bytes));
    ck_assert(!xm_card_decode(card_bytes, sizeof(card_bytes), &card));

    xm_finding_encode(&finding, finding_bytes);
    ck_assert(xm_finding_decode(finding_bytes, sizeof(finding_bytes), &other));
    ck_assert_int_eq(memcmp(&finding, &other, sizeof(other)), 0);
    finding_bytes[0] = XM_SEVERITY_COUNT;
    ck_assert(!xm_finding_decode(finding_bytes, sizeof(finding_bytes), &other));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("doctor");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 30);
    tcase_add_test(tcase, each_fault_is_found_and_no_other);
    tcase_add_test(tcase, findings_have_the_numbers);
    tcase_add_test(tcase, a_machine_that_tells_nothing);
    tcase_add_test(tcase, this_machine_can_be_examined);
    tcase_add_test(tcase, lists_of_the_kernel_are_read);
    tcase_add_test(tcase, bound_ranks_have_their_cores_together);
    tcase_add_test(tcase, the_odd_rank_is_named);
    tcase_add_test(tcase, equal_ranks_are_well);
    tcase_add_test(tcase, records_survive_the_wire_and_rubbish_does_not);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
