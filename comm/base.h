/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file base.h
 * The face of comm/base/: other rooms include this header and none of the folder. What every room
 * stands on: status codes and error sentences, the log, the one clock, list, arena and
 * random-number generator, text and little-endian numbers, the reader of JSON, and the table of the
 * library's environment variables.
 */
#pragma once

#include "comm/base/arena.h"
#include "comm/base/clock.h"
#include "comm/base/config.h"
#include "comm/base/json_read.h"
#include "comm/base/list.h"
#include "comm/base/little_endian.h"
#include "comm/base/log.h"
#include "comm/base/params.h"
#include "comm/base/path_pattern.h"
#include "comm/base/random.h"
#include "comm/base/status.h"
#include "comm/base/text.h"
#include "comm/base/text_file.h"
#include "comm/base/versions.h"
