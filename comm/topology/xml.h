/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm/topology/xml.h
 * Looks at hwloc XML before hwloc does: hwloc trusts what it reads, and a description that
 * contradicts itself (an object without its sets of processors, a child that is not inside its
 * parent) makes it read where nothing is. Internal.
 */
#pragma once

#include "comm/base.h"

/**
 * XM_OK when the objects of the text are nested as hwloc needs them. It may still refuse what else
 * is wrong. @p source names the text in the sentence. Comments must have been removed.
 */
xm_status_t xm_topology_check_xml(const char *source, const char *xml);
