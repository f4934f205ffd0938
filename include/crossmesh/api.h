/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file api.h
 * Marks what the shared library exports.
 *
 * Every function of these headers that is marked so is exported by libcrossmesh.so under the symbol
 * version that docs/abi.md explains; everything else of the library is hidden. There is nothing in
 * here for users.
 */
#ifndef CROSSMESH_API_H
#define CROSSMESH_API_H

#define XM_API __attribute__((visibility("default")))

#endif
