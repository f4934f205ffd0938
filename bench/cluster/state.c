/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of clusters that outlive their maker. A file's lock says whether its cluster
 * lives: the kernel releases it when the holder dies, so no stale file is ever mistaken
 * for a cluster, and no process id needs to be trusted.
 */
#include "bench/cluster/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

/* A reader holds the lock for a moment, which must not pass for a cluster that lives:
 * claiming tries again. */
enum { ATTEMPTS = 20, PAUSE_US = 10000, FOLDER_MODE = 0700, FILE_MODE = 0600 };

/* True when the folder is there, or now is, and nobody else can put files into it. */
static bool is_ours(const char *folder)
{
    struct stat found;

    (void)mkdir(folder, FOLDER_MODE);
    return stat(folder, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
           (found.st_mode & (S_IWGRP | S_IWOTH)) == 0 && access(folder, W_OK | X_OK) == 0;
}

/* The folder that is named must do; of the usual places the first that is ours is taken. */
xm_status_t rb_cluster_state_folder(char *buffer, size_t size)
{
    const char *given = getenv(RB_CLUSTER_STATE_DIR), *runtime = getenv("XDG_RUNTIME_DIR");

    if (given != NULL && given[0] != '\0') {
        (void)snprintf(buffer, size, "%s", given);
        if (is_ours(buffer)) {
            return XM_OK;
        }
        return xm_error_set(XM_ERR_IO, RB_CLUSTER_STATE_DIR "=%s is no folder of ours", given);
    }
    if (runtime != NULL && runtime[0] == '/') {
        (void)snprintf(buffer, size, "%s/emulated-cluster", runtime);
        if (is_ours(buffer)) {
            return XM_OK;
        }
    }
    if (geteuid() == 0) {
        (void)snprintf(buffer, size, "/run/emulated-cluster");
        if (is_ours(buffer)) {
            return XM_OK;
        }
    }
    (void)snprintf(buffer, size, "/tmp/emulated-cluster-%u", (unsigned)geteuid());
    if (is_ours(buffer)) {
        return XM_OK;
    }
    return xm_error_set(XM_ERR_IO, "%s is no folder of ours; " RB_CLUSTER_STATE_DIR " names one",
                        buffer);
}

/* Names have been checked, so they cannot lead out of the folder. */
static xm_status_t path_of(const char *name, char *path, size_t size)
{
    char folder[PATH_MAX - 64];
    XM_TRY(rb_cluster_state_folder(folder, sizeof(folder)));

    (void)snprintf(path, size, "%s/%s.json", folder, name);
    return XM_OK;
}

/* Tries for a while to get the lock. */
static bool lock(int fd, int how)
{
    for (int i = 0; i < ATTEMPTS; ++i) {
        if (flock(fd, how | LOCK_NB) == 0) {
            return true;
        }
        (void)usleep(PAUSE_US);
    }
    return false;
}

/* True when the path still leads to the open file: its last owner may have removed it. */
static bool is_current(int fd, const char *path)
{
    struct stat open_file, named;

    return fstat(fd, &open_file) == 0 && stat(path, &named) == 0 &&
           open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
}

/* Locks the file of the name, and starts over when the file was removed between opening
 * and locking. */
xm_status_t rb_cluster_state_claim(const char *name, rb_cluster_claim_t *claim)
{
    char *path = claim->path;

    XM_TRY(path_of(name, path, sizeof(claim->path)));
    for (;;) {
        int opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC, FILE_MODE);

        if (opened < 0) {
            return xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
        }
        if (!lock(opened, LOCK_EX)) {
            (void)close(opened);
            return XM_INVALID("a cluster of the name '%s' exists; end it with 'emulated-cluster "
                              "down --name %s', or take another --name",
                              name, name);
        }
        if (is_current(opened, path)) {
            claim->fd = opened;
            return ftruncate(opened, 0) == 0
                       ? XM_OK
                       : xm_error_set(XM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
        }
        (void)close(opened);
    }
}

/* The document that `status --json` prints, too. */
char *rb_cluster_state_dump(const rb_cluster_members_t *members)
{
    const rb_cluster_shape_t *shape = &members->shape;
    json_t *hosts = json_array(), *root;
    char *text;

    for (int h = 0; h < shape->hosts; ++h) {
        json_t *nics = json_array();
        char name[RB_CLUSTER_NAME + 16];

        (void)snprintf(name, sizeof(name), "%s%d", shape->name, h);
        for (int i = 0; i < shape->nics; ++i) {
            char address[32];

            (void)json_array_append_new(
                nics, json_pack("{s:s, s:I}", "address",
                                rb_cluster_shape_address(h, i, address, sizeof(address)), "rate",
                                (json_int_t)shape->rate[h][i]));
        }
        (void)json_array_append_new(hosts, json_pack("{s:s, s:i, s:o}", "name", name, "pid",
                                                     (int)members->init[h], "nics", nics));
    }
    root = json_pack("{s:i, s:s, s:i, s:i, s:i, s:i, s:I, s:f, s:o}", "version", 1, "name",
                     shape->name, "holder", (int)members->holder, "nics_per_host", shape->nics,
                     "mtu", shape->mtu, "racks", shape->racks, "uplink", (json_int_t)shape->uplink,
                     "core_share", shape->core_share, "hosts", hosts);
    text = root != NULL ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

/* One write at offset 0 into the emptied file; readers that come too early find no JSON
 * and say so. */
xm_status_t rb_cluster_state_write(const rb_cluster_claim_t *claim,
                                   const rb_cluster_members_t *members)
{
    char *text = rb_cluster_state_dump(members);
    xm_status_t status = XM_OK;

    XM_NEED_MEMORY(text, "the description of the cluster");
    if (pwrite(claim->fd, text, strlen(text), 0) != (ssize_t)strlen(text)) {
        status = xm_error_set(XM_ERR_IO, "cannot write the description of the cluster: %s",
                              strerror(errno));
    }
    free(text);
    return status;
}

void rb_cluster_state_remove(const rb_cluster_claim_t *claim)
{
    /* While the path leads to the file that we have locked, nobody else can own it. */
    if (claim->fd >= 0 && is_current(claim->fd, claim->path)) {
        (void)unlink(claim->path);
    }
}

/* The file is checked like any input: an older version may have written it. */
static xm_status_t parse(json_t *root, rb_cluster_members_t *members)
{
    rb_cluster_shape_t *shape = &members->shape;
    json_int_t uplink = 0;
    const char *name = "";
    json_t *hosts = NULL, *nics = NULL;
    int holder = 0, pid = 0;
    bool good = json_unpack(root, "{s:s, s:i, s:i, s:i, s:i, s:I, s?F, s:o}", "name", &name,
                            "holder", &holder, "nics_per_host", &shape->nics, "mtu", &shape->mtu,
                            "racks", &shape->racks, "uplink", &uplink, "core_share",
                            &shape->core_share, "hosts", &hosts) == 0;

    (void)snprintf(shape->name, sizeof(shape->name), "%s", name);
    shape->uplink = uplink;
    shape->hosts = (int)json_array_size(hosts);
    members->holder = holder;
    good = good && shape->hosts <= RB_CLUSTER_HOSTS && shape->nics <= RB_CLUSTER_NICS;
    for (int h = 0; good && h < shape->hosts; ++h) {
        good = json_unpack(json_array_get(hosts, (size_t)h), "{s:i, s:o}", "pid", &pid, "nics",
                           &nics) == 0;
        members->init[h] = pid;
        for (int i = 0; good && i < shape->nics; ++i) {
            json_int_t rate = 0;

            good = json_unpack(json_array_get(nics, (size_t)i), "{s:I}", "rate", &rate) == 0;
            shape->rate[h][i] = rate;
        }
    }
    return good ? rb_cluster_shape_check(shape)
                : XM_MALFORMED("what the cluster's file says is not complete");
}

/* A lock that can be had means that no holder lives. */
xm_status_t rb_cluster_state_read(const char *name, rb_cluster_members_t *members)
{
    char path[PATH_MAX];
    json_error_t error;
    json_t *root = NULL;
    xm_status_t status = rb_cluster_name_check(name);
    int fd;

    XM_THEN(status, path_of(name, path, sizeof(path)));
    XM_TRY(status);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) == 0) {
        status = XM_NOT_FOUND(
            "there is no cluster of the name '%s'; 'emulated-cluster up --name %s' makes one", name,
            name);
        goto close_file;
    }
    root = json_loadfd(fd, 0, &error);
    *members = (rb_cluster_members_t){0};
    if (root == NULL) {
        status = XM_NOT_FOUND("the cluster '%s' is not ready yet", name);
    } else {
        status = parse(root, members);
    }
    json_decref(root);

close_file:
    if (fd >= 0) {
        (void)close(fd);
    }
    return status;
}
