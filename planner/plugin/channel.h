/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file planner/plugin/channel.h
 * Messages between a program and the process in which a planner plug-in runs
 * (autopar/planner_library.h): a kind, a number or two and a text, over a socket that both ends
 * made non-blocking. Both are the same program, so messages are as they lie in memory. Not
 * installed.
 */
#pragma once

#include <stdint.h>

#include "comm/base.h"

typedef enum ap_message_kind {
    AP_MESSAGE_READY = 1, /**< from the planner: it runs; text: its name */
    AP_MESSAGE_FAILED,    /**< it does not; number: a status, text: the sentence */
    AP_MESSAGE_PROGRESS,  /**< fraction, and what it looks at */
    AP_MESSAGE_LOG,       /**< a sentence for the user */
    AP_MESSAGE_REPLY,     /**< number: what plan() returned; text: a plan or a reason */
    AP_MESSAGE_NO_REPLY,  /**< the same where the reply was NULL */
    AP_MESSAGE_DONE,      /**< finalize has returned */
    AP_MESSAGE_PLAN,      /**< to the planner; text: the request */
    AP_MESSAGE_END        /**< to the planner: finalise */
} ap_message_kind_t;

typedef struct ap_message {
    uint32_t kind;
    int32_t number;
    double fraction;
    uint64_t length; /**< of the text, which a zero byte follows on arrival; set by send */
} ap_message_t;

/**
 * Sends; `text` may be NULL. XM_ERR_TIMEOUT: the deadline passed first; XM_ERR_PEER_DIED: nobody
 * reads any more.
 */
xm_status_t ap_channel_send(int socket, double deadline, const ap_message_t *message,
                            const char *text);

/**
 * Receives; the text is the caller's, to free(). XM_ERR_TIMEOUT and XM_ERR_PEER_DIED as above;
 * XM_ERR_CORRUPT: what came is no message.
 */
xm_status_t ap_channel_receive(int socket, double deadline, ap_message_t *message, char **text);
