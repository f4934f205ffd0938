/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file options.h
 * Strict command lines on top of popt, shared by autopar and reshard-bench.
 *
 * A command declares a table of options, each with a kind and a variable; xm_cli_parse() fills the
 * variables. Everything is checked: an unknown option or choice is an error with the nearest match,
 * a number must consume its whole text and lie in its range. `--help` (`-h`) is added to every
 * table and prints the summary and the table on standard output; so does `--version` when the
 * command has one.
 *
 * @code
 *     bool json = false;
 *     int ranks = 0;
 *     uint64_t limit = 0;
 *     int strategy = 0;
 *     const xm_cli_option_t table[] = {
 *         {"json", 0, XM_CLI_FLAG, &json, NULL, 0, 0, "Print JSON."},
 *         {"ranks", 'n', XM_CLI_INT, &ranks, "RANKS", 1, 4096, "Local ranks to start."},
 *         {"limit", 0, XM_CLI_BYTES, &limit, "BYTES", 0, 0, "Memory limit."},
 *         {"strategy", 0, XM_CLI_CHOICE, &strategy, "send_recv|broadcast", 0, 0,
 *          "Strategy of every unit task."},
 *     };
 *     const xm_cli_command_t command =
 *         XM_CLI_COMMAND("reshard-bench", NULL, "Moves tensors.", "reshard-bench -n 4", table, 0,
 * 0); xm_cli_t *cli;
 *
 *     status = xm_cli_parse(&command, argc, argv, &cli);
 *     if (status != XM_OK) {
 *         return xm_cli_fail(command.program, status);
 *     }
 *     if (!xm_cli_finished(cli)) {
 *         …
 *     }
 *     xm_cli_destroy(cli);
 * @endcode
 *
 * Link `xm_cli` and, after it, crossmesh. Threads: one thread at a time per object.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

/** What an option's value is, and the type of the variable that `target` points at. */
typedef enum xm_cli_kind {
    XM_CLI_FLAG,   /**< no value; bool, set to true */
    XM_CLI_STRING, /**< const char *, owned by the xm_cli_t */
    XM_CLI_OUTPUT, /**< the same, a file that this process will write: refused when it cannot be */
    XM_CLI_LIST,   /**< xm_cli_list_t, one entry each time the option is given */
    XM_CLI_INT,    /**< int, in [minimum, maximum] */
    XM_CLI_DOUBLE, /**< double, in [minimum, maximum] */
    XM_CLI_BYTES,  /**< uint64_t above 0, with units as in xm_text_parse_bytes() */
    XM_CLI_CHOICE  /**< int, index of the value in `argument` ("a|b|c") */
} xm_cli_kind_t;

/** Values of a repeatable option, in order. Owned by the xm_cli_t. */
typedef struct xm_cli_list {
    const char *const *items;
    size_t count;
} xm_cli_list_t;

/** One option. A variable keeps its value when the option is not given. */
typedef struct xm_cli_option {
    const char *name; /**< long name without dashes */
    char letter;      /**< short name, or 0 */
    xm_cli_kind_t kind;
    void *target;
    const char *argument; /**< placeholder in the help; for XM_CLI_CHOICE the choices "a|b|c" */
    double minimum;       /**< XM_CLI_INT and XM_CLI_DOUBLE; both 0 means unlimited */
    double maximum;
    const char *help;
} xm_cli_option_t;

/** A row in a macro of several: without this clang-format takes them for blocks. */
#define XM_CLI_ROW(...)                                                                            \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/** A command: its name, what its help says, and its table. */
typedef struct xm_cli_command {
    size_t struct_size;
    const char *program;   /**< as errors start, e.g. "autopar plan" */
    const char *arguments; /**< positional arguments in the usage line, e.g. "PLAN.json"; or NULL */
    const char *summary;   /**< sentences below the options, wrapped there; or NULL */
    const char *example;   /**< a call that works as it is, below the summary; or NULL */
    const char *version;   /**< text of --version; NULL: no such option */
    const xm_cli_option_t *options;
    size_t option_count;
    size_t min_arguments; /**< positional arguments: at least, at most */
    size_t max_arguments;
} xm_cli_command_t;

#define XM_CLI_COMMAND_INIT                                                                        \
    {                                                                                              \
        .struct_size = sizeof(xm_cli_command_t)                                                    \
    }

/** A command whose options are the array @p table, with @p least to @p most arguments. */
#define XM_CLI_COMMAND(name, usage, text, call, table, least, most)                                \
    {                                                                                              \
        .struct_size = sizeof(xm_cli_command_t), .program = (name), .arguments = (usage),          \
        .summary = (text), .example = (call), .options = (table),                                  \
        .option_count = sizeof(table) / sizeof((table)[0]), .min_arguments = (least),              \
        .max_arguments = (most)                                                                    \
    }

typedef struct xm_cli xm_cli_t;

/**
 * Parses argv[1 … argc - 1]. Options and positional arguments may be mixed; "--" ends the options;
 * of a non-repeatable option given twice the last counts. Fails with one sentence that names the
 * option and the text. The table is copied; its texts and variables must outlive the object.
 */
xm_status_t xm_cli_parse(const xm_cli_command_t *command, int argc, char *const *argv,
                         xm_cli_t **cli);

/** True when --help or --version was given and has been printed: the command ends with status 0. */
bool xm_cli_finished(const xm_cli_t *cli);

/** True when the option of this long name was given. */
bool xm_cli_given(const xm_cli_t *cli, const char *name);

/**
 * Index of @p text among @p choices, "a|b|c". Fails with one sentence that begins with @p what and
 * offers the nearest of them.
 */
xm_status_t xm_cli_choose(const char *what, const char *choices, const char *text, int *index);

/** Positional arguments and their number. Owned by @p cli. */
const char *const *xm_cli_arguments(const xm_cli_t *cli, size_t *count);

/** Frees the object and the strings it gave out. NULL is accepted. */
void xm_cli_destroy(xm_cli_t *cli);

/**
 * Prints "program: sentence" of the last failure on standard error and returns the exit status: 2
 * when the caller's input caused it, 1 otherwise.
 */
int xm_cli_fail(const char *program, xm_status_t status);

/**
 * Checks the XM_ settings of the environment. A bad value is a failure; a name that is no setting
 * may be another program's, so that is only warned of, by the process that @p speaks.
 */
xm_status_t xm_cli_check_settings(bool speaks, const char *program);

/** The same for one of several ranks; nothing is printed unless this one @p speaks for all. */
int xm_cli_fail_rank(bool speaks, const char *program, xm_status_t status);

/**
 * A whole program: parses, calls @p run with @p options unless --help or --version was given,
 * reports a failure as xm_cli_fail() does, and returns the exit status.
 */
int xm_cli_main(const xm_cli_command_t *command, int argc, char *const *argv,
                xm_status_t (*run)(const xm_cli_t *cli, void *options), void *options);

/** One of several commands of a program: its own main(), whose argv[0] is its name. */
typedef struct xm_cli_subcommand {
    const char *name;
    int (*run)(int argc, char *const *argv);
    const char *summary;
} xm_cli_subcommand_t;

/**
 * A whole program of several commands, which @p about tells in a sentence: prints help or version,
 * or runs the command that argv[1] names once @p prepare, unless NULL, has gone well. The nearest
 * name is offered for an unknown one.
 */
int xm_cli_dispatch(const char *program, const char *about, const xm_cli_subcommand_t *commands,
                    size_t count, xm_status_t (*prepare)(void), int argc, char *const *argv);

/**
 * Flushes standard output and reports a write error (a full disk, a closed pipe) as a failure, so
 * that a command whose output was lost does not exit with 0.
 */
xm_status_t xm_cli_flush(void);
