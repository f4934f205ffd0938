/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autopar export: writes the shardings of a finished plan in the language of another system.
 * Standard output gets the export itself, so that it can be piped, and JSON about what was written
 * is given only where the export goes into a file.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli_support.h"
#include "planner/cli/command.h"
#include "planner/cli/output_file.h"
#include "planner/export.h"

enum { FORM_NOT_GIVEN = -1, FORM_FLEXFLOW = AP_EXPORT_TORCH + 1 };

static const char program[] = "autopar export";
static const char summary[] =
    "Writes the shardings of a plan's stages as JAX, XLA or PyTorch call them. "
    "autopar shard --export-jax and its like do it for one mesh and a file of HLO text.";

typedef struct export_options {
    const char *output;
    int form;
    xm_cli_json_t json;
} export_options_t;

typedef struct export_job {
    const ap_plan_t *plan;
    int form; /* an ap_export_form_t, or one of the forms here */
} export_job_t;

static xm_status_t put_plan(const void *context, FILE *stream)
{
    const export_job_t *job = context;

    return job->form == FORM_FLEXFLOW
               ? ap_export_flexflow(job->plan, stream)
               : ap_export_plan(job->plan, (ap_export_form_t)job->form, stream);
}

/* A file appears only when the export is complete; standard output gets what there is, and its
 * reader sees the exit status. */
static xm_status_t write_plan(const export_job_t *job, const char *output)
{
    if (output != NULL) {
        return ap_output_file_write(output, put_plan, job);
    }
    XM_TRY(put_plan(job, stdout));
    return xm_cli_flush();
}

static xm_status_t print_written(const ap_plan_t *plan, const export_options_t *o)
{
    static const char *const forms[] = {"jax", "hlo", "torch", "flexflow"};

    return xm_cli_give_json(&o->json,
                            json_pack("{s:i, s:s, s:s, s:s, s:i}", "version", 1, "model",
                                      ap_plan_info(plan)->model, "to", forms[o->form], "output",
                                      o->output, "stages", ap_plan_stages(plan)));
}

/* Options that contradict each other are refused before the plan is read, so that a long file does
 * not delay the answer. */
static xm_status_t run(const xm_cli_t *cli, void *options)
{
    const char *path = ap_command_argument(cli, 0);
    const export_options_t *o = options;
    ap_plan_t *plan;
    xm_status_t status;

    if (xm_cli_wants_json(&o->json) && o->output == NULL) {
        return XM_INVALID("--json needs --output: standard output gets the export");
    }
    if (o->form == FORM_NOT_GIVEN) {
        return XM_INVALID("--to is needed: jax, hlo, torch or flexflow");
    }
    XM_TRY(ap_plan_load(path, &plan));
    status = write_plan(&(export_job_t){.plan = plan, .form = o->form}, o->output);
    if (status == XM_OK && xm_cli_wants_json(&o->json)) {
        status = print_written(plan, o);
    }
    ap_plan_destroy(plan);
    return status;
}

int ap_command_export(int argc, char *const *argv)
{
    export_options_t o = {.form = FORM_NOT_GIVEN};
    const xm_cli_option_t table[] = {
        {"to", 0, XM_CLI_CHOICE, &o.form, "jax|hlo|torch|flexflow", 0, 0,
         "PartitionSpecs, XLA's sharding attributes, DTensor placements, or FlexFlow's "
         "strategies."},
        {"output", 'o', XM_CLI_OUTPUT, &o.output, "FILE", 0, 0,
         "Write to a file (default: standard output)."},
        XM_CLI_JSON_OPTIONS(XM_CLI_OUTPUT, &o.json,
                            "With --output: print as JSON what was written."),
    };
    const xm_cli_command_t command =
        XM_CLI_COMMAND(program, "PLAN.json", summary,
                       "autopar export plan.json --to jax -o shardings.py", table, 1, 1);

    return xm_cli_main(&command, argc, argv, run, &o);
}
