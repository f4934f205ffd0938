/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_support/options.h"

#include <stdio.h>
#include <unistd.h>

#include "cli_support/progress.h"
#include "xm_test.h"

static struct {
    bool json;
    int ranks;
    double alpha;
    uint64_t limit;
    int strategy;
    const char *mesh;
    xm_cli_list_t cases;
} values;

static const xm_cli_option_t options[] = {
    {.name = "json", .letter = 'J', .kind = XM_CLI_FLAG, .target = &values.json, .help = "JSON."},
    {.name = "ranks",
     .letter = 'n',
     .kind = XM_CLI_INT,
     .target = &values.ranks,
     .argument = "RANKS",
     .minimum = 1,
     .maximum = 64,
     .help = "Ranks."},
    {.name = "alpha",
     .kind = XM_CLI_DOUBLE,
     .target = &values.alpha,
     .argument = "SECONDS",
     .minimum = 0,
     .maximum = 10,
     .help = "Alpha."},
    {.name = "limit",
     .kind = XM_CLI_BYTES,
     .target = &values.limit,
     .argument = "BYTES",
     .help = "Limit."},
    {.name = "strategy",
     .kind = XM_CLI_CHOICE,
     .target = &values.strategy,
     .argument = "send_recv|broadcast|auto",
     .help = "Strategy."},
    {.name = "mesh",
     .kind = XM_CLI_STRING,
     .target = &values.mesh,
     .argument = "2x4",
     .help = "Mesh."},
    {.name = "case",
     .kind = XM_CLI_LIST,
     .target = &values.cases,
     .argument = "NAME",
     .help = "Case."},
};

static const xm_cli_command_t command = {.struct_size = sizeof(xm_cli_command_t),
                                         .program = "tool run",
                                         .arguments = "FILE",
                                         .summary = "Runs the tool.",
                                         .version = "tool 1.2",
                                         .options = options,
                                         .option_count = sizeof(options) / sizeof(options[0]),
                                         .max_arguments = 1};

static xm_status_t parse(const char *const *argv, xm_cli_t **cli)
{
    int argc = 0;

    memset(&values, 0, sizeof(values));
    *cli = NULL;
    while (argv[argc] != NULL) {
        ++argc;
    }
    return xm_cli_parse(&command, argc, (char *const *)argv, cli);
}

START_TEST(every_kind_is_stored)
{
    const char *argv[] = {"tool",    "--json", "-n",     "8",   "--alpha=0.5",     "input.json",
                          "--limit", "16GiB",  "--mesh", "1x4", "--mesh",          "2x4",
                          "--case",  "a",      "--case", "b",   "--strategy=auto", NULL};
    const char *const *arguments;
    size_t count;
    xm_cli_t *cli;

    ck_assert_xm_ok(parse(argv, &cli));
    ck_assert(values.json);
    ck_assert_int_eq(values.ranks, 8);
    ck_assert_double_eq(values.alpha, 0.5);
    ck_assert_uint_eq(values.limit, UINT64_C(16) << 30);
    ck_assert_int_eq(values.strategy, 2);
    ck_assert_str_eq(values.mesh, "2x4");
    ck_assert_uint_eq(values.cases.count, 2);
    ck_assert_str_eq(values.cases.items[1], "b");
    arguments = xm_cli_arguments(cli, &count);
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(arguments[0], "input.json");
    ck_assert(xm_cli_given(cli, "mesh"));
    ck_assert(!xm_cli_given(cli, "nothing"));
    ck_assert(!xm_cli_finished(cli));
    xm_cli_destroy(cli);
}
END_TEST

START_TEST(nothing_given_changes_nothing)
{
    const char *argv[] = {"tool", NULL};
    size_t count;
    xm_cli_t *cli;

    ck_assert_xm_ok(parse(argv, &cli));
    ck_assert(!xm_cli_given(cli, "json"));
    (void)xm_cli_arguments(cli, &count);
    ck_assert_uint_eq(count, 0);
    ck_assert_int_eq(values.ranks, 0);
    xm_cli_destroy(cli);
    xm_cli_destroy(NULL);
}
END_TEST

START_TEST(bad_lines_are_one_sentence)
{
    static const struct {
        const char *word[3];
        xm_status_t status;
        const char *sentence;
    } rows[] = {
        {{"--stratgey", "auto"},
         XM_ERR_INVALID_ARGUMENT,
         "unknown option --stratgey; did you mean --strategy?"},
        {{"--stratgey=auto"}, XM_ERR_INVALID_ARGUMENT, "did you mean --strategy?"},
        {{"--hlep"}, XM_ERR_INVALID_ARGUMENT, "did you mean --help?"},
        {{"--qwertyuiop"}, XM_ERR_INVALID_ARGUMENT, "--help lists all options"},
        {{"-z"}, XM_ERR_INVALID_ARGUMENT, "unknown option -z"},
        {{"--strat", "auto"}, XM_ERR_INVALID_ARGUMENT, "unknown option --strat;"},
        {{"--mesh"}, XM_ERR_INVALID_ARGUMENT, "option --mesh needs a value"},
        {{"--json=1"}, XM_ERR_INVALID_ARGUMENT, "--json"},
        {{"-n", "eight"}, XM_ERR_PARSE, "--ranks: 'eight' is not an integer"},
        {{"-n", "65"}, XM_ERR_INVALID_ARGUMENT, "--ranks: 65 is outside 1"},
        {{"--alpha", "x"}, XM_ERR_PARSE, "--alpha: 'x' is not a number"},
        {{"--limit", "4 GB"}, XM_ERR_PARSE, "--limit: '4 GB'"},
        {{"--strategy", "brodcast"}, XM_ERR_INVALID_ARGUMENT, "did you mean 'broadcast'?"},
        {{"--strategy", "zzzzzz"}, XM_ERR_INVALID_ARGUMENT, "is not one of send_recv|"},
        {{"a", "b"}, XM_ERR_INVALID_ARGUMENT, "unexpected argument 'b'"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
        const char *argv[] = {"tool", rows[i].word[0], rows[i].word[1], rows[i].word[2], NULL};
        xm_cli_t *cli;

        ck_assert_xm_fails(parse(argv, &cli), rows[i].status, rows[i].sentence);
        ck_assert_ptr_null(cli);
    }
}
END_TEST

START_TEST(missing_argument_names_the_usage)
{
    const char *argv[] = {"tool", NULL};
    xm_cli_command_t strict = command;
    xm_cli_t *cli = NULL;

    strict.min_arguments = 1;
    ck_assert_xm_fails(xm_cli_parse(&strict, 1, (char *const *)argv, &cli), XM_ERR_INVALID_ARGUMENT,
                       "tool run [OPTION...] FILE");
}
END_TEST

/* Standard output of parsing argv, in a static buffer. */
static const char *printed(const char *const *argv)
{
    static char text[4096];
    char path[] = "/tmp/xm_test_options_XXXXXX";
    int fd = mkstemp(path), saved = dup(STDOUT_FILENO);
    xm_cli_t *cli;
    ssize_t length;

    ck_assert_int_ge(fd, 0);
    (void)fflush(stdout);
    (void)dup2(fd, STDOUT_FILENO);
    ck_assert_xm_ok(parse(argv, &cli));
    ck_assert(xm_cli_finished(cli));
    (void)dup2(saved, STDOUT_FILENO);
    (void)close(saved);
    length = pread(fd, text, sizeof(text) - 1, 0);
    ck_assert_int_ge(length, 0);
    text[length] = '\0';
    (void)close(fd);
    (void)unlink(path);
    xm_cli_destroy(cli);
    return text;
}

START_TEST(help_and_version_are_printed)
{
    const char *help[] = {"tool", "--help", NULL}, *version[] = {"tool", "--version", NULL};
    const char *text = printed(help);

    ck_assert_ptr_nonnull(strstr(text, "tool run [OPTION...] FILE"));
    ck_assert_ptr_nonnull(strstr(text, "--strategy=NAME"));
    ck_assert_ptr_nonnull(strstr(text, "send_recv, broadcast, auto."));
    ck_assert_ptr_nonnull(strstr(text, "-n, --ranks=RANKS"));
    ck_assert_ptr_nonnull(strstr(text, "--version"));
    ck_assert_ptr_nonnull(strstr(text, "Runs the tool."));
    ck_assert_str_eq(printed(version), "tool 1.2\n");
}
END_TEST

START_TEST(exit_status_follows_the_failure)
{
    (void)XM_MALFORMED("x");
    ck_assert_int_eq(xm_cli_fail("tool", XM_ERR_PARSE), 2);
    ck_assert_int_eq(xm_cli_fail("tool", XM_ERR_TIMEOUT), 1);
    ck_assert_xm_ok(xm_cli_flush());
}
END_TEST

START_TEST(progress_is_silent_when_quick)
{
    xm_cli_progress_t *progress = xm_cli_progress_create("tool");

    xm_cli_progress_update(progress, 0.5, "half");
    xm_cli_progress_destroy(progress);
    xm_cli_progress_update(NULL, 0.5, "half");
    xm_cli_progress_destroy(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *tcase = tcase_create("all");

    tcase_add_test(tcase, every_kind_is_stored);
    tcase_add_test(tcase, nothing_given_changes_nothing);
    tcase_add_test(tcase, bad_lines_are_one_sentence);
    tcase_add_test(tcase, missing_argument_names_the_usage);
    tcase_add_test(tcase, help_and_version_are_printed);
    tcase_add_test(tcase, exit_status_follows_the_failure);
    tcase_add_test(tcase, progress_is_silent_when_quick);
    suite_add_tcase(suite, tcase);
    return xm_test_run(suite);
}
