/**
 * @file api.h
 * Marks the functions that the shared libraries export. Everything else is hidden.
 */
#ifndef XM_COMM_API_H
#define XM_COMM_API_H

#define XM_API __attribute__((visibility("default")))

/** Lets the compiler check printf-style arguments. @p fmt and @p args are 1-based positions. */
#define XM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

#endif
