/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the CUDA driver at run time. Its symbols are looked up by a table made from the same
 * list as the struct of pointers, so the two cannot differ. A machine without the driver is a
 * normal machine: failures are "unsupported", with the loader's reason. */
#include "comm/memory/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "comm/base.h"

static const char library_name[] = "libcuda.so.1";

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
#define SYMBOL(name, parameters) {#name, offsetof(xm_cuda_driver_t, name)},
    XM_CUDA_TABLE(SYMBOL)
#undef SYMBOL
};

/* Opens the library and looks up its functions. It stays loaded even after the last close,
 * because it has threads that outlive this code. */
static xm_status_t load(xm_cuda_driver_t *driver, int flags)
{
    *driver = (xm_cuda_driver_t){.library = dlopen(library_name, RTLD_NOW | RTLD_NODELETE | flags)};
    if (driver->library == NULL) {
        const char *reason = dlerror();

        return XM_UNSUPPORTED("no CUDA: %s",
                              reason != NULL ? reason : "libcuda.so.1 is not loaded");
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); ++i) {
        void *symbol = dlsym(driver->library, symbols[i].name);

        if (symbol == NULL) {
            (void)XM_UNSUPPORTED("no CUDA: %s has no %s", library_name, symbols[i].name);
            xm_cuda_driver_close(driver);
            return XM_ERR_UNSUPPORTED;
        }
        memcpy((char *)driver + symbols[i].offset, &symbol, sizeof(symbol));
    }
    return XM_OK;
}

/* Opens the driver and initialises it, which fails where there is a driver but no device. */
xm_status_t xm_cuda_driver_open(xm_cuda_driver_t *driver)
{
    xm_status_t status = load(driver, 0);

    if (status == XM_OK) {
        int result = driver->cuInit(0);

        if (result != XM_CU_SUCCESS) {
            (void)xm_cuda_error(driver, -1, "cuInit", result);
            status = xm_error_prefix(XM_ERR_UNSUPPORTED, "no CUDA");
            xm_cuda_driver_close(driver);
        }
    }
    if (status < 0) {
        xm_log_debug("%s", xm_last_error());
    }
    return status;
}

/* Finds the driver only if some code of this process has loaded it already. */
bool xm_cuda_driver_find(xm_cuda_driver_t *driver)
{
    return load(driver, RTLD_NOLOAD) == XM_OK;
}

void xm_cuda_driver_close(xm_cuda_driver_t *driver)
{
    if (driver->library != NULL) {
        (void)dlclose(driver->library);
        driver->library = NULL;
    }
}

/* The sentence has the driver's own name and text for the result; the status says whether
 * memory was lacking, something is not supported, or the device failed. */
xm_status_t xm_cuda_error(const xm_cuda_driver_t *driver, int device, const char *what, int result)
{
    const char *name = NULL, *text = NULL;
    char where[32] = "driver";

    if (driver->cuGetErrorName(result, &name) != XM_CU_SUCCESS || name == NULL) {
        name = "unknown result";
    }
    if (driver->cuGetErrorString(result, &text) != XM_CU_SUCCESS || text == NULL) {
        text = "the driver has no name for it";
    }
    if (device >= 0) {
        (void)snprintf(where, sizeof(where), "CUDA device %d", device);
    }
    return xm_error_set(result == XM_CU_OUT_OF_MEMORY   ? XM_ERR_NO_MEMORY
                        : result == XM_CU_NOT_SUPPORTED ? XM_ERR_UNSUPPORTED
                                                        : XM_ERR_IO,
                        "%s: %s: %s (%d, %s)", where, what, name, result, text);
}
