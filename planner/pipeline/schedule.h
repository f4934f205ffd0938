/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/pipeline/schedule.h
 * Pipeline schedules as data: for every device the list of what it does in one training step, in
 * order: forward, backward and weight-gradient passes, sends, receives, parameter updates.
 *
 * A pipeline has `devices` devices (each stands for all devices of a stage's mesh) and `stages`
 * stages. Passes of a stage run on one device; activations go from stage to stage, their gradients
 * the way back. The schedules, with p devices, m micro-batches, and the times F of a forward pass,
 * B of a backward pass's input half and W of its weight half:
 *
 * | name           | idle time of a device            | activations on device i          |
 * |----------------|----------------------------------|----------------------------------|
 * | gpipe          | (p - 1)(F + B + W)               | m                                |
 * | 1f1b           | (p - 1)(F + B + W)               | min(m, p - i)                    |
 * | interleaved    | (p - 1)(F + B + W) / v           | of 1 / v: min(mv, 2(p - i - 1) + |
 * |                |                                  | (v - 1)p + 1)                    |
 * | eager-1f1b     | (p - 1)(F + B + W)               | min(m, 2(p - i) - 1)             |
 * | eager-1f1b-w   | (p - 1)(F + B)                   | min(m, 2(p - i) - 1)             |
 * | chimera, m = p | (p - 2)(B + W)                   | min(p/2, p - i) + min(p/2, i + 1) |
 * | zb-h1          | (p - 1)(F + B - W)               | p - i, and i for W               |
 * | zb-h2          | (p - 1)(F + B - 2W)              | 2(p - i) - 1, and 2i for W       |
 * | terapipe       | (p - 1)(max f + max b), by slice | all                              |
 * | pipedream-2bw  | none once full                   | min(m, p - i), parameters twice  |
 * | zb-v           | none inside its span at F = B = W | of half: 2p                     |
 * | dualpipev      | less than 1f1b's                 | of half: 2p + 1                  |
 * | pipedream      | none once full                   | min(m, p - i), parameters p - i  |
 * | pipemare       | none once full                   | min(m, 2(p - i)), parameters once |
 * | hetpipe        | none once full                   | min(m, p - i), parameters p      |
 * | varuna         | 1f1b's or less                   | up to min(m, 2(p - i))           |
 *
 * Published by: gpipe Huang, NeurIPS'19; 1f1b Fan (DAPPLE), PPoPP'21; interleaved Narayanan, SC'21;
 * eager-1f1b and -w Zhuang, MLSys'23; chimera Li, SC'21; zb-h1 and zb-h2 Qi, ICLR'24; terapipe Li,
 * ICML'21; pipedream-2bw Narayanan, ICML'21; zb-v Qi, NeurIPS'24; dualpipev DeepSeek, 2025;
 * pipedream Narayanan, SOSP'19; pipemare Yang, MLSys'21; hetpipe Park, ATC'20; varuna Athlur,
 * EuroSys'22.
 *
 * The formulas take transfers as free and B, W as near enough to F (zb: W <= B, W <= F). v stages
 * to a device are "virtual stages". zb-h2's idle time is that inside a device's own first to last
 * pass: devices start and end one after the other. eager-1f1b starts forward passes as early as two
 * micro-batches per boundary allow, so that transfers overlap with passes; eager-1f1b-w also sends
 * the gradient of the input before it computes that of the weights (backward-weight delaying).
 * chimera runs two pipelines in opposite directions, the parameters twice. terapipe cuts each
 * micro-batch into slices along its tokens; a slice needs those before it, and their gradients need
 * it. pipedream-2bw never empties the pipeline: the list spans `batches` steps, and the passes of a
 * step use the parameters of the step before the last. zb-v and dualpipev have two stages to a
 * device, down the devices and up again, so that the first device has the first and the last stage:
 * losses turn round where they arise. dualpipev alternates forward passes of one direction with
 * backward passes of the other, whose transfers hide behind each other.
 *
 * pipedream updates after every micro-batch: device i keeps the p - i versions that its
 * micro-batches in flight began with. hetpipe does so too, but a micro-batch has the same version,
 * p - 1 updates old, everywhere (a wave of p micro-batches in its virtual worker). pipemare
 * overwrites its only version: a backward pass does not see what its forward pass saw, (2(p - i) -
 * 1) / m updates before. varuna is 1f1b in its list, but a device that waits for a gradient goes on
 * with a forward pass whose input is there.
 *
 * A schedule is immutable once made; planner/pipeline/check.h proves one safe,
 * planner/pipeline/simulate.h runs it. Units: bytes. Ownership: a schedule owns its lists. Threads:
 * shared freely.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/base.h"

typedef enum ap_schedule_kind {
    AP_SCHEDULE_GPIPE,
    AP_SCHEDULE_1F1B,
    AP_SCHEDULE_INTERLEAVED,
    AP_SCHEDULE_EAGER_1F1B,
    AP_SCHEDULE_EAGER_1F1B_W,
    AP_SCHEDULE_CHIMERA,
    AP_SCHEDULE_ZB_H1,
    AP_SCHEDULE_ZB_H2,
    AP_SCHEDULE_TERAPIPE,
    AP_SCHEDULE_PIPEDREAM_2BW,
    AP_SCHEDULE_ZB_V,
    AP_SCHEDULE_DUALPIPEV,
    AP_SCHEDULE_PIPEDREAM,
    AP_SCHEDULE_PIPEMARE,
    AP_SCHEDULE_HETPIPE,
    AP_SCHEDULE_VARUNA
} ap_schedule_kind_t;

enum { AP_SCHEDULE_KINDS = AP_SCHEDULE_VARUNA + 1 };

/** What a device does in one entry of its list. */
typedef enum ap_pass {
    AP_PASS_FORWARD,
    AP_PASS_BACKWARD, /**< whole, or the input half where the schedule splits it */
    AP_PASS_WEIGHT,   /**< weight half, only where split */
    AP_PASS_UPDATE,   /**< gradients reduced, parameters updated; `micro_batch` is the batch */
    AP_PASS_SEND_ACTIVATION,
    AP_PASS_RECEIVE_ACTIVATION,
    AP_PASS_SEND_GRADIENT,
    AP_PASS_RECEIVE_GRADIENT
} ap_pass_t;

enum { AP_PASSES = AP_PASS_RECEIVE_GRADIENT + 1 };

/** One entry. A receive names the stage that receives, a send the stage that sends. */
typedef struct ap_schedule_op {
    ap_pass_t pass;
    int pipeline;    /**< 0; 1 for chimera's second direction */
    int stage;       /**< 0 … stages - 1 */
    int micro_batch; /**< 0 … batches * micro_batches - 1; for updates the batch */
    int slice;       /**< 0 … slices - 1; 0 for updates */
    int version;     /**< updates that the parameters used have seen; for updates: before it */
    int64_t held;    /**< bytes of activations on the device while this runs */
} ap_schedule_op_t;

typedef struct ap_schedule {
    ap_schedule_kind_t kind;
    int devices;
    int stages;                /**< of each pipeline: devices * virtual stages */
    int pipelines;             /**< 1, chimera 2 */
    int micro_batches;         /**< of one batch, after which the parameters are updated */
    int slices;                /**< of a micro-batch */
    int batches;               /**< that the lists span; 1 unless asynchronous */
    int updates;               /**< batches of one step: its micro-batches, if each is a batch */
    int versions;              /**< of the parameters that a device keeps at most */
    bool split;                /**< backward passes come in halves */
    int *device_of;            /**< [pipelines][stages] */
    int *op_count;             /**< [devices] */
    ap_schedule_op_t **ops;    /**< [devices][op_count] */
    int64_t *activation_bytes; /**< [stages][slices]: from a forward pass to its backward pass */
    int64_t *weight_bytes;     /**< [stages][slices]: of these, kept for the weight half */
    xm_arena_t arena;          /**< of these arrays; each device's list is its own */
} ap_schedule_t;

typedef struct ap_schedule_params {
    ap_schedule_kind_t kind;
    int devices;
    int micro_batches;
    int virtual_stages; /**< per device; interleaved: 0 means 2; the V's: 0 or 2, others: 0 or 1 */
    int slices;         /**< terapipe; 0 means 1 */
    int batches;        /**< steps of asynchronous ones; 0: 3, of pipemare 4; others 0 or 1 */
    /** [stages][slices] bytes that a forward pass leaves on its device; NULL: 1 each. */
    const int64_t *activation_bytes;
    /** [stages][slices] the part of them that the weight half needs; NULL: all. */
    const int64_t *weight_bytes;
} ap_schedule_params_t;

#define AP_SCHEDULE_PARAMS_INIT                                                                    \
    {                                                                                              \
        0                                                                                          \
    }

/** "gpipe", "1f1b", … as in the table above. */
const char *ap_schedule_name(ap_schedule_kind_t kind);

/** The kind of this name; an unknown name is an error that gives the nearest. */
xm_status_t ap_schedule_find(const char *name, ap_schedule_kind_t *kind);

/** "forward", "backward", "weight", … */
const char *ap_pass_name(ap_pass_t pass);

/**
 * Makes a schedule. XM_ERR_INVALID_ARGUMENT says which number the schedule cannot have: chimera
 * needs an even number of devices, interleaved micro-batches in multiples of the devices,
 * pipedream-2bw as many micro-batches as devices.
 */
xm_status_t ap_schedule_create(const ap_schedule_params_t *params, ap_schedule_t **schedule);

/** What kinds differ in. */
typedef struct ap_schedule_traits {
    const char *name;
    bool synchronous;  /**< the pipeline is empty at the end of each step */
    int ahead;         /**< so many micro-batches more than the device after it a device may have in
                          flight; 0: nothing limits them */
    int first;         /**< what the last device may have */
    int delay;         /**< backward passes, for each device before, that weight halves wait for */
    int chunks;        /**< stages to a device where nothing else is asked for; 0: one */
    double filled;     /**< weight halves that fill the bubble of a stage */
    bool splits;       /**< backward passes come in halves */
    bool v;            /**< stages lie down the devices and up again */
    bool updates_each; /**< parameters are updated after each micro-batch */
    bool beyond_list;  /**< the list is 1f1b's, and waits let a device go on beyond it */
} ap_schedule_traits_t;

const ap_schedule_traits_t *ap_schedule_traits(ap_schedule_kind_t kind);

/** Whether a schedule of this kind keeps the results of synchronous training. */
bool ap_schedule_is_synchronous(ap_schedule_kind_t kind);

/** Versions of its parameters that the device of this stage keeps. */
int ap_schedule_versions(const ap_schedule_t *schedule, int stage);

/** Micro-batches to an update of the parameters: those of the step, or one. */
int ap_schedule_accumulated(ap_schedule_kind_t kind, int micro_batches);

/** Updates that the forward passes of a stage have not seen of those that their gradients are
 * added to: the mean over the last step of the lists. */
double ap_schedule_delay(const ap_schedule_t *schedule, int stage);

/**
 * Micro-batches whose activations a device holds at once where @p before devices stand before it
 * and @p after behind it, those that wait for the weight half of their backward pass included.
 * Kinds with one stage to a device and whole micro-batches only; as in the lists.
 */
int64_t ap_schedule_in_flight(ap_schedule_kind_t kind, int before, int after,
                              int64_t micro_batches);

/** Stages to a device where nothing else is asked for: 2 of interleaved and the V's, else 1. */
int ap_schedule_chunks(ap_schedule_kind_t kind);

/** The device of a stage in the first pipeline: round and round, or down and up again. */
int ap_schedule_device(ap_schedule_kind_t kind, int devices, int stage);

/**
 * What filling and draining the pipeline costs, as a share of the stages' times: p equal stages of
 * t seconds take m t + share (p - 1) t. @p weight is the weight half's share of a stage's time: of
 * halves that take equally long a third, or a quarter where the forward pass runs twice.
 */
double ap_schedule_fill_share(ap_schedule_kind_t kind, double weight);

/** NULL is accepted. */
void ap_schedule_destroy(ap_schedule_t *schedule);
