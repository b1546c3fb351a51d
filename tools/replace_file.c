/* Replacing a file as a whole; see replace_file.h. */
#include "replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct draft {
    char *target, *name; /* owned; the draft is name */
    FILE *file;
} draft;

/* Remove the draft unless it has taken the target's name; errno stays. */
static void close_draft(draft *d)
{
    int why = errno;
    if (d->file)
        fclose(d->file);
    if (d->name)
        unlink(d->name);
    free(d->target);
    free(d->name);
    errno = why;
}

/* Permissions are those of the earlier file, or those of a new file. */
static bool open_draft(const char *path, const struct stat *earlier, draft *d)
{
    mode_t mask = umask(0);
    umask(mask);
    *d = (draft){.target = earlier ? realpath(path, NULL) : strdup(path)};
    if (!d->target || (earlier && access(path, W_OK) != 0))
        return false;
    if (asprintf(&d->name, "%s.XXXXXX", d->target) < 0) {
        d->name = NULL;
        return false;
    }
    int fd = mkostemp(d->name, O_CLOEXEC);
    if (fd < 0) {
        free(d->name);
        d->name = NULL;
        return false;
    }
    d->file = fchmod(fd, earlier ? earlier->st_mode & 0777 : 0666 & ~mask) == 0 ? fdopen(fd, "w") : NULL;
    if (!d->file)
        close(fd);
    return d->file != NULL;
}

typedef enum file_kind { FILE_ABSENT, FILE_REGULAR, FILE_OTHER } file_kind;

static file_kind kind_of(const char *path, struct stat *about)
{
    return stat(path, about) != 0 ? FILE_ABSENT : S_ISREG(about->st_mode) ? FILE_REGULAR : FILE_OTHER;
}

bool tool_file_can_replace(const char *path)
{
    struct stat about;
    draft d;
    file_kind kind = kind_of(path, &about);
    if (kind == FILE_OTHER) {
        errno = EISDIR;
        return !S_ISDIR(about.st_mode) && access(path, W_OK) == 0;
    }
    bool good = open_draft(path, kind == FILE_REGULAR ? &about : NULL, &d);
    close_draft(&d);
    return good;
}

static bool write_in_place(const char *path, tool_file_fn *write, const void *user)
{
    FILE *file = fopen(path, "we");
    bool good = file && write(file, user) && !ferror(file);
    int why = errno;
    if (file && fclose(file) != 0 && good)
        return false;
    errno = why;
    return good;
}

bool tool_file_replace(const char *path, tool_file_fn *write, const void *user)
{
    struct stat about;
    draft d;
    file_kind kind = kind_of(path, &about);
    if (kind == FILE_OTHER)
        return write_in_place(path, write, user);
    bool good = open_draft(path, kind == FILE_REGULAR ? &about : NULL, &d) && write(d.file, user) &&
                fflush(d.file) == 0 && !ferror(d.file) && fsync(fileno(d.file)) == 0 &&
                rename(d.name, d.target) == 0;
    if (good) { /* the draft's name is gone */
        free(d.name);
        d.name = NULL;
    }
    close_draft(&d);
    return good;
}
