/* SPDX-License-Identifier: Apache-2.0 */
/* Opening NCCL at run time, by a table of its functions that is made from the same list as the
 * struct of pointers. A machine without NCCL is a normal one; versions before 2.14 cannot be
 * used, because they have no calls that do not block. */
#include "comm/probe/nccl_library.h"

#include <dlfcn.h>
#include <string.h>

static const char library_name[] = "libnccl.so.2";

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
#define SYMBOL(result, name, parameters) {#name, offsetof(xm_nccl_library_t, name)},
    XM_NCCL_TABLE(SYMBOL)
#undef SYMBOL
};

/* A missing function means a version that is too old, so the sentence asks for a newer one. */
static xm_status_t find_symbols(xm_nccl_library_t *nccl)
{
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); ++i) {
        void *symbol = dlsym(nccl->library, symbols[i].name);

        if (symbol == NULL) {
            return XM_UNSUPPORTED("no NCCL: %s has no %s; 2.14 or later is needed", library_name,
                                  symbols[i].name);
        }
        memcpy((char *)nccl + symbols[i].offset, &symbol, sizeof(symbol));
    }
    return XM_OK;
}

/* The library stays loaded after the process has used it: it has threads of its own. */
xm_status_t xm_nccl_library_open(xm_nccl_library_t *nccl)
{
    int result;

    *nccl = (xm_nccl_library_t){.library = dlopen(library_name, RTLD_NOW | RTLD_NODELETE)};
    if (nccl->library == NULL) {
        /* dlerror() forgets its text after one call. */
        const char *reason = dlerror();

        return XM_UNSUPPORTED("no NCCL: %s",
                              reason != NULL ? reason : "libnccl.so.2 cannot be opened");
    }
    XM_TRY(find_symbols(nccl));
    result = nccl->ncclGetVersion(&nccl->version);
    if (result != XM_NCCL_SUCCESS) {
        return xm_nccl_error(nccl, NULL, "ncclGetVersion", result);
    }
    /* The functions alone do not decide: the promises of the version are relied on as well. */
    if (nccl->version < XM_NCCL_OLDEST) {
        return XM_UNSUPPORTED("no NCCL: %s is version number %d; 2.14 (%d) or later is needed",
                              library_name, nccl->version, XM_NCCL_OLDEST);
    }
    return XM_OK;
}

static xm_status_t status_of(int result)
{
    switch (result) {
    case XM_NCCL_INVALID_ARGUMENT:
    case XM_NCCL_INVALID_USAGE:
        return XM_ERR_UNSUPPORTED;
    case XM_NCCL_REMOTE:
        return XM_ERR_PEER_DIED;
    case XM_NCCL_INTERNAL:
        return XM_ERR_INTERNAL;
    default:
        return XM_ERR_IO;
    }
}

/* NCCL's last error explains more than its code; only its first line is taken. */
xm_status_t xm_nccl_error(const xm_nccl_library_t *nccl, void *comm, const char *what, int result)
{
    const char *text = nccl->ncclGetErrorString(result);
    const char *detail = nccl->ncclGetLastError(comm);
    size_t length = detail != NULL ? strcspn(detail, "\n") : 0;

    if (length == 0) {
        return xm_error_set(status_of(result), "NCCL: %s: %s", what,
                            text != NULL ? text : "unknown result");
    }
    return xm_error_set(status_of(result), "NCCL: %s: %s (%.*s)", what,
                        text != NULL ? text : "unknown result", (int)length, detail);
}
