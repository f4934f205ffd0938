/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines on top of popt: the table's rows become popt's, and every value is parsed
 * strictly and kept for as long as the object lives. popt does the syntax and the help;
 * values are converted here, so that limits are checked and named, and a wrong choice is
 * answered with the nearest right one.
 */
#include "cli_support/options.h"

#include <errno.h>
#include <limits.h>
#include <popt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base.h"
#include <crossmesh/version.h>

/* The values that popt hands back: table rows count from 1, and the built-in options lie
 * above any table. */
enum {
    HELP_VALUE = 1 << 20,
    VERSION_VALUE,
    MAX_CHOICES = 32,
    MAX_CHOICE_TEXT = 256,
    LONG_CHOICES = 16,
    HELP_WIDTH = 79,
    MOST_COMMANDS = 30
};

struct xm_cli {
    xm_cli_command_t command; /* its table is the copy below; names and helps are borrowed */
    xm_cli_option_t *options;
    struct poptOption *table;
    const char **argv;
    poptContext context;
    char **strings; /* every value text that variables may point into */
    size_t string_count;
    const char ***lists; /* per option, the array a list variable points at */
    char **helps;        /* per option, the help that lists long choices; or NULL */
    bool *given;
    const char *const *arguments;
    size_t argument_count;
    bool finished;
};

/* Describes an option for the help. popt gives all helps what the longest option leaves
 * of the line, so choices that would take it up stand in the help instead, where popt can
 * break between them. */
static void describe(const xm_cli_option_t *option, struct poptOption *row, char **help)
{
    const char *choices = option->argument != NULL ? option->argument : "";

    row->descrip = option->help;
    row->argDescrip = option->argument;
    if (strlen(choices) > LONG_CHOICES && strchr(choices, '|') != NULL) {
        size_t size = strlen(option->help) + 2 * strlen(choices) + sizeof(" One of .");
        size_t used;

        *help = malloc(size);
        if (*help == NULL) {
            return;
        }
        used = (size_t)snprintf(*help, size, "%s One of ", option->help);
        for (; *choices != '\0'; ++choices) {
            used += (size_t)snprintf(*help + used, size - used, *choices == '|' ? "%c " : "%c",
                                     *choices == '|' ? ',' : *choices);
        }
        (void)snprintf(*help + used, size - used, ".");
        row->descrip = *help;
        row->argDescrip = "NAME";
    }
}

static void fill_table(xm_cli_t *cli)
{
    const xm_cli_command_t *command = &cli->command;
    struct poptOption *row = cli->table;

    for (size_t i = 0; i < command->option_count; ++i, ++row) {
        const xm_cli_option_t *option = &command->options[i];

        row->longName = option->name;
        row->shortName = option->letter;
        row->argInfo = option->kind == XM_CLI_FLAG ? POPT_ARG_NONE : POPT_ARG_STRING;
        row->val = (int)i + 1;
        describe(option, row, &cli->helps[i]);
    }
    if (command->version != NULL) {
        *row++ = (struct poptOption){.longName = "version",
                                     .argInfo = POPT_ARG_NONE,
                                     .val = VERSION_VALUE,
                                     .descrip = "Print the version."};
    }
    *row = (struct poptOption){.longName = "help",
                               .shortName = 'h',
                               .argInfo = POPT_ARG_NONE,
                               .val = HELP_VALUE,
                               .descrip = "Print this help."};
}

/* The nearest right name is offered where one is near. */
xm_status_t xm_cli_choose(const char *what, const char *choices, const char *text, int *index)
{
    char copy[MAX_CHOICE_TEXT];
    const char *names[MAX_CHOICES];
    size_t count = 0;
    const char *nearest;

    (void)snprintf(copy, sizeof(copy), "%s", choices);
    for (char *rest = copy, *name; count < MAX_CHOICES && (name = strsep(&rest, "|")) != NULL;) {
        if (strcmp(name, text) == 0) {
            *index = (int)count;
            return XM_OK;
        }
        names[count++] = name;
    }
    nearest = xm_text_nearest(text, names, count);
    if (nearest != NULL) {
        return XM_INVALID("%s: '%s' is unknown; did you mean '%s'?", what, text, nearest);
    }
    return XM_INVALID("%s: '%s' is not one of %s", what, text, choices);
}

/* The first value replaces the list's default, later ones are appended. */
static xm_status_t append_to_list(xm_cli_t *cli, size_t index, const char *text)
{
    xm_cli_list_t *list = cli->command.options[index].target;
    const char **grown =
        realloc(cli->lists[index], (cli->given[index] ? list->count + 1 : 1) * sizeof(*grown));

    XM_NEED_MEMORY(grown, "the values of --%s", cli->command.options[index].name);
    if (!cli->given[index]) {
        list->count = 0;
    }
    grown[list->count++] = text;
    cli->lists[index] = grown;
    list->items = grown;
    return XM_OK;
}

/* Equal limits mean none, as in a table row that does not mention them. */
static xm_status_t store_int(const xm_cli_option_t *option, const char *what, const char *text)
{
    bool limited = option->minimum < option->maximum;
    int64_t value;
    XM_TRY(xm_text_parse_int(what, text, limited ? (int64_t)option->minimum : INT_MIN,
                             limited ? (int64_t)option->maximum : INT_MAX, &value));

    *(int *)option->target = (int)value;
    return XM_OK;
}

/* The option's name with its dashes is what error sentences begin with. */
static xm_status_t store(xm_cli_t *cli, size_t index, char *text)
{
    const xm_cli_option_t *option = &cli->command.options[index];
    bool limited = option->minimum < option->maximum;
    char what[MAX_CHOICE_TEXT];
    xm_status_t status = XM_OK;

    (void)snprintf(what, sizeof(what), "--%s", option->name);
    switch (option->kind) {
    case XM_CLI_FLAG:
        *(bool *)option->target = true;
        break;
    case XM_CLI_OUTPUT:
        status = xm_file_check_output(what, text);
        *(const char **)option->target = text;
        break;
    case XM_CLI_STRING:
        *(const char **)option->target = text;
        break;
    case XM_CLI_LIST:
        status = append_to_list(cli, index, text);
        break;
    case XM_CLI_INT:
        status = store_int(option, what, text);
        break;
    case XM_CLI_DOUBLE:
        status = xm_text_parse_double(what, text, limited ? option->minimum : -1e300,
                                      limited ? option->maximum : 1e300, option->target);
        break;
    case XM_CLI_BYTES:
        status = xm_text_parse_bytes(what, text, option->target);
        if (status == XM_OK && *(uint64_t *)option->target == 0) {
            status = XM_INVALID("%s: 0 bytes hold nothing", what);
        }
        break;
    case XM_CLI_CHOICE:
        status = xm_cli_choose(what, option->argument, text, option->target);
        break;
    }
    cli->given[index] = true;
    return status;
}

/* Takes over the text that popt allocated for the current option; variables may point
 * into it. */
static xm_status_t take_value(xm_cli_t *cli, size_t index)
{
    char *text = poptGetOptArg(cli->context);
    char **grown;

    if (text == NULL) {
        return store(cli, index, NULL);
    }
    grown = realloc(cli->strings, (cli->string_count + 1) * sizeof(*grown));
    if (grown == NULL) {
        free(text);
        return XM_NO_MEMORY("the value of --%s", cli->command.options[index].name);
    }
    cli->strings = grown;
    cli->strings[cli->string_count++] = text;
    return store(cli, index, text);
}

/* The value behind = is no part of the option's name. */
static xm_status_t unknown_option(const xm_cli_t *cli, const char *given)
{
    const char *names[256];
    char word[128], shown[81];
    size_t count = 0;
    const char *nearest = NULL;

    (void)snprintf(word, sizeof(word), "%.*s", (int)strcspn(given, "="), given);
    (void)xm_text_copy(word, shown, sizeof(shown));
    if (strncmp(word, "--", 2) == 0) {
        for (const struct poptOption *row = cli->table; row->longName != NULL; ++row) {
            if (count < sizeof(names) / sizeof(names[0])) {
                names[count++] = row->longName;
            }
        }
        nearest = xm_text_nearest(word + 2, names, count);
    }
    if (nearest != NULL) {
        return XM_INVALID("unknown option %s; did you mean --%s?", shown, nearest);
    }
    return XM_INVALID("unknown option %s%s; --help lists all options", shown,
                      strlen(shown) < strlen(word) ? "…" : "");
}

static xm_status_t popt_failure(const xm_cli_t *cli, int code)
{
    const char *given = poptBadOption(cli->context, POPT_BADOPTION_NOALIAS);

    switch (code) {
    case POPT_ERROR_BADOPT:
        return unknown_option(cli, given);
    case POPT_ERROR_NOARG:
        return XM_INVALID("option %s needs a value", given);
    default:
        return XM_INVALID("option %s: %s", given, poptStrerror(code));
    }
}

/* popt prints the table; the summary stands below it. */
static void print_help(const xm_cli_t *cli)
{
    const xm_cli_command_t *command = &cli->command;
    char usage[MAX_CHOICE_TEXT];

    (void)snprintf(usage, sizeof(usage), "[OPTION...]%s%s", command->arguments != NULL ? " " : "",
                   command->arguments != NULL ? command->arguments : "");
    poptSetOtherOptionHelp(cli->context, usage);
    poptPrintHelp(cli->context, stdout, 0);
    if (command->summary != NULL) {
        (void)putchar('\n');
        xm_text_print_wrapped(stdout, HELP_WIDTH, "", "", "%s", command->summary);
    }
    if (command->example != NULL) {
        (void)printf("\nExample:\n  %s\n", command->example);
    }
}

/* The first argument too many is named, as it is most likely a misplaced value. */
static xm_status_t check_arguments(xm_cli_t *cli)
{
    const xm_cli_command_t *command = &cli->command;

    cli->arguments = poptGetArgs(cli->context);
    while (cli->arguments != NULL && cli->arguments[cli->argument_count] != NULL) {
        ++cli->argument_count;
    }
    if (cli->argument_count > command->max_arguments) {
        return XM_INVALID("unexpected argument '%s'; --help shows what is accepted",
                          cli->arguments[command->max_arguments]);
    }
    if (cli->argument_count < command->min_arguments) {
        return XM_INVALID("missing argument: the usage is %s [OPTION...] %s", command->program,
                          command->arguments != NULL ? command->arguments : "");
    }
    return XM_OK;
}

/* Help and version end the parsing at once, so they work next to mistakes. */
static xm_status_t read_options(xm_cli_t *cli)
{
    int code;

    while ((code = poptGetNextOpt(cli->context)) > 0) {
        if (code == HELP_VALUE || code == VERSION_VALUE) {
            if (code == HELP_VALUE) {
                print_help(cli);
            } else {
                (void)printf("%s\n", cli->command.version);
            }
            cli->finished = true;
            return xm_cli_flush();
        } else {
            XM_TRY(take_value(cli, (size_t)code - 1));
        }
    }
    return code == -1 ? check_arguments(cli) : popt_failure(cli, code);
}

/* The table is copied, so the caller's may be a local array. */
xm_status_t xm_cli_parse(const xm_cli_command_t *command, int argc, char *const *argv,
                         xm_cli_t **result)
{
    xm_cli_t *cli = calloc(1, sizeof(*cli));
    /* The sentence is set beforehand for all allocations below. */
    xm_status_t status = XM_NO_MEMORY("the command line");

    if (cli == NULL) {
        return status;
    }
    cli->command = *command;
    cli->options = malloc((command->option_count + 1) * sizeof(*cli->options));
    cli->table = calloc(command->option_count + 3, sizeof(*cli->table));
    cli->argv = calloc((size_t)argc + 2, sizeof(*cli->argv));
    cli->lists = calloc(command->option_count + 1, sizeof(*cli->lists));
    cli->helps = calloc(command->option_count + 1, sizeof(*cli->helps));
    cli->given = calloc(command->option_count + 1, sizeof(*cli->given));
    if (cli->options == NULL || cli->table == NULL || cli->argv == NULL || cli->lists == NULL ||
        cli->helps == NULL || cli->given == NULL) {
        goto destroy_cli;
    }
    for (size_t i = 0; i < command->option_count; ++i) {
        cli->options[i] = command->options[i];
    }
    cli->command.options = cli->options;
    fill_table(cli);
    cli->argv[0] = command->program;
    for (int i = 1; i < argc; ++i) {
        cli->argv[i] = argv[i];
    }
    /* popt wants at least the program's name. */
    cli->context = poptGetContext(command->program, argc > 0 ? argc : 1, cli->argv, cli->table, 0);
    if (cli->context == NULL) {
        goto destroy_cli;
    }
    status = read_options(cli);
    if (status != XM_OK) {
        goto destroy_cli;
    }
    *result = cli;
    return XM_OK;

destroy_cli:
    xm_cli_destroy(cli);
    return status;
}

bool xm_cli_finished(const xm_cli_t *cli)
{
    return cli->finished;
}

bool xm_cli_given(const xm_cli_t *cli, const char *name)
{
    for (size_t i = 0; i < cli->command.option_count; ++i) {
        if (strcmp(cli->command.options[i].name, name) == 0) {
            return cli->given[i];
        }
    }
    return false;
}

const char *const *xm_cli_arguments(const xm_cli_t *cli, size_t *count)
{
    *count = cli->argument_count;
    return cli->arguments;
}

void xm_cli_destroy(xm_cli_t *cli)
{
    if (cli == NULL) {
        return;
    }
    if (cli->context != NULL) {
        (void)poptFreeContext(cli->context);
    }
    for (size_t i = 0; i < cli->string_count; ++i) {
        free(cli->strings[i]);
    }
    for (size_t i = 0; cli->lists != NULL && i < cli->command.option_count; ++i) {
        free(cli->lists[i]);
    }
    for (size_t i = 0; cli->helps != NULL && i < cli->command.option_count; ++i) {
        free(cli->helps[i]);
    }
    free(cli->helps);
    free(cli->strings);
    free(cli->lists);
    free(cli->given);
    free(cli->argv);
    free(cli->table);
    free(cli->options);
    free(cli);
}

/* The exit status tells the caller's mistakes (2) from failures (1). */
int xm_cli_fail(const char *program, xm_status_t status)
{
    (void)fflush(stdout);
    (void)fprintf(stderr, "%s: %s\n", program, xm_last_error());
    return xm_status_is_caller(status) ? 2 : 1;
}

xm_status_t xm_cli_check_settings(bool speaks, const char *program)
{
    xm_status_t status = xm_config_check();

    if (status != XM_ERR_NOT_FOUND) {
        return status;
    }
    if (speaks) {
        (void)fprintf(stderr, "%s: warning: %s\n", program, xm_last_error());
    }
    return XM_OK;
}

/* The exit status is 2 where the caller is at fault, also on ranks that stay silent. */
int xm_cli_fail_rank(bool speaks, const char *program, xm_status_t status)
{
    if (speaks) {
        return xm_cli_fail(program, status);
    }
    return xm_status_is_caller(status) ? 2 : EXIT_FAILURE;
}

int xm_cli_main(const xm_cli_command_t *command, int argc, char *const *argv,
                xm_status_t (*run)(const xm_cli_t *cli, void *options), void *options)
{
    xm_cli_t *cli = NULL;
    xm_status_t status = xm_cli_parse(command, argc, argv, &cli);

    if (status == XM_OK && !xm_cli_finished(cli)) {
        status = run(cli, options);
    }
    xm_cli_destroy(cli);
    return status < 0 ? xm_cli_fail(command->program, status) : EXIT_SUCCESS;
}

static void list_commands(const char *program, const char *about,
                          const xm_cli_subcommand_t *commands, size_t count)
{
    (void)printf("Usage: %s COMMAND [OPTION...]\n\n%s\n\n", program, about);
    for (size_t i = 0; i < count; ++i) {
        (void)printf("  %-9s %s\n", commands[i].name, commands[i].summary);
    }
    (void)printf("\n  --help     Print this help; %s COMMAND --help lists a command's options.\n"
                 "  --version  Print the version.\n",
                 program);
}

/* A bare "unknown command" would leave the reader to guess which it was. */
static xm_status_t unknown_command(const char *program, const char *word,
                                   const xm_cli_subcommand_t *commands, size_t count)
{
    const char *names[MOST_COMMANDS + 2] = {"--help", "--version"}, *nearest;

    count = count < MOST_COMMANDS ? count : MOST_COMMANDS;
    for (size_t i = 0; i < count; ++i) {
        names[i + 2] = commands[i].name;
    }
    nearest = xm_text_nearest(word, names, count + 2);
    return nearest != NULL
               ? XM_NOT_FOUND("unknown command '%s'; did you mean '%s'?", word, nearest)
               : XM_NOT_FOUND("unknown command '%s'; %s --help lists the commands", word, program);
}

/* Help and the version stand before what is prepared, such as a check of the environment, so that a
 * wrong variable there cannot keep anyone from reading how to set it. */
int xm_cli_dispatch(const char *program, const char *about, const xm_cli_subcommand_t *commands,
                    size_t count, xm_status_t (*prepare)(void), int argc, char *const *argv)
{
    const char *word = argc > 1 ? argv[1] : "";
    bool help = strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
    xm_status_t status = XM_OK;

    if (argc < 2) {
        status = XM_INVALID("a command is needed; %s --help lists the commands", program);
    } else if (help || strcmp(word, "--version") == 0) {
        if (help) {
            list_commands(program, about, commands, count);
        } else {
            (void)printf("%s %s\n", program, XM_VERSION_STRING);
        }
        status = xm_cli_flush();
        return status == XM_OK ? EXIT_SUCCESS : xm_cli_fail(program, status);
    }
    status = status == XM_OK && prepare != NULL ? prepare() : status;
    for (size_t i = 0; i < count && status == XM_OK; ++i) {
        if (strcmp(word, commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    return xm_cli_fail(program,
                       status < 0 ? status : unknown_command(program, word, commands, count));
}

/* A full disk shows only when the output is flushed, so programs end with this. */
xm_status_t xm_cli_flush(void)
{
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        return xm_error_set(XM_ERR_IO, "cannot write to standard output: %s", strerror(errno));
    }
    return XM_OK;
}
