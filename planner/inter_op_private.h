/**
 * @file inter_op_private.h
 * The dynamic programme behind inter_op.h: tables, one run, and the way back. Not installed.
 */
#ifndef AP_PLANNER_INTER_OP_PRIVATE_H
#define AP_PLANNER_INTER_OP_PRIVATE_H

#include "planner/inter_op.h"

/*
 * One run of the dynamic programme fills value[s][k][d][p]: the least cost of layers k … K - 1 in s
 * stages on the last d devices, after a stage with out port p. A state is submesh * configs +
 * config. The dimension s collapses when nothing limits the number of stages, p when boundaries are
 * free.
 */
typedef struct ap_inter_op_search {
    const ap_inter_op_problem_t *problem;
    int states;
    int total;     /* devices of the cluster */
    int levels;    /* largest s, or 0 when the dimension is collapsed */
    int out_ports; /* size of the dimension p; 1 when boundaries are free */
    int in_ports;  /* likewise for the later stage */
    int offsets;   /* size of the device dimension of the boundary table: total + 1 or 1 */
    int *active;   /* states that have a cost anywhere */
    int active_count;
    bool counts_stages; /* a limit on the number of stages needs the dimension s */
    bool use_memory;    /* honour max_successors */
    bool use_max;       /* combine by max (smallest bottleneck) instead of sum */
    double limit;       /* stages and boundaries above it are not used */
    double *boundary;   /* [row][devices left][out port][in port]; NULL: free */
    int *boundary_row;  /* per layer: row of the boundary before it */
    int *out_size;      /* per out port: devices of its stages, 0 = no active state has it */
    double *value;
    double *first;   /* scratch: per state, least cost when it is the next stage */
    int *best_state; /* scratch: per in port, the state with the least of `first`, or -1 */
    int *live;       /* scratch: the in ports that have a best state, ascending */
    int live_count;
} ap_inter_op_search_t;

/* Checks the tables of a checked problem and allocates; close() also after a failure. */
xm_status_t ap_inter_op_search_open(ap_inter_op_search_t *search,
                                    const ap_inter_op_problem_t *problem);
void ap_inter_op_search_close(ap_inter_op_search_t *search);

/* Runs the programme under search->limit; returns the least cost (INFINITY: none) and in *stages
 * the number of stages that gives it (0: not counted). */
double ap_inter_op_search_run(ap_inter_op_search_t *search, int *stages);

/* Repeats the choices of the last run from the front; returns the number of stages. */
int ap_inter_op_search_trace(ap_inter_op_search_t *search, int level, ap_inter_op_stage_t *stages);

#endif
