/**
 * @file command.h
 * The sub-commands of autopar. Each takes its own arguments (argv[0] is its name) and returns the
 * exit status: 0, 2 when the caller's input was wrong, 1 otherwise.
 */
#ifndef AP_CLI_COMMAND_H
#define AP_CLI_COMMAND_H

#include <stddef.h>
#include <stdint.h>

#include "comm/profile.h"

int ap_command_probe(int argc, char *const *argv);
int ap_command_plan(int argc, char *const *argv);
int ap_command_import(int argc, char *const *argv);
int ap_command_shard(int argc, char *const *argv);
int ap_command_solve(int argc, char *const *argv);
int ap_command_explain(int argc, char *const *argv);
int ap_command_simulate(int argc, char *const *argv);
int ap_command_export(int argc, char *const *argv);
int ap_command_compare(int argc, char *const *argv);

/** Loads a cluster profile and, where @p hosts or @p devices are not 0, resizes it. */
xm_status_t ap_command_load_cluster(const char *path, int hosts, int devices,
                                    xm_cluster_profile_t **profile);

/** Parses the number of stages of --stages: "3" or "2-4". */
xm_status_t ap_command_parse_stages(const char *text, int *minimum, int *maximum);

/** Value of an --overlap that was not given. */
#define AP_COMMAND_NO_OVERLAP (-1.0)

/** Replaces @p profile by one with the overlap of an option, unless that was not given. */
xm_status_t ap_command_set_overlap(double overlap, xm_cluster_profile_t **profile);

/** Parses "8,16,32" into at most @p capacity positive integers. */
xm_status_t ap_command_parse_list(const char *what, const char *text, int64_t *values,
                                  size_t capacity, size_t *count);

#endif
