/* See directory.h. */
#include "support/directory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>

static char directory[] = "/tmp/tsr-test-XXXXXX";

int directory_make(void **state)
{
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

int directory_remove(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    return system(command);
}

const char *directory_path(void)
{
    return directory;
}

const char *directory_file(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

const char *directory_write(const char *name, const void *bytes, size_t n)
{
    char parents[512];
    snprintf(parents, sizeof parents, "%s", directory_file(name));
    for (char *at = parents + sizeof directory; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(parents, 0700); /* where it fails, so does opening the file */
        *at = '/';
    }
    FILE *file = fopen(parents, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    return directory_file(name);
}
