/* Machines in archives: what is unpacked, what is refused, and that neither a hostile archive, nor an
 * environment, nor a kill leaves anything behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tsr/topology.h>

#include "support/directory.h"
#include "support/topology.h"
#include "topo/import/machine_file.h"
#include "topo/import/unpack.h"

#define SHARED "../shared/topo/hwloc-fsroot"

static char temporary[128]; /* TMPDIR of this program */

/* -- writing archives -- */

/* A header and `content`, or `zeros` zero bytes. Types as in tar: '0' file, '1' hard link, '2' link. */
static void put_entry(FILE *file, const char *name, char type, const char *link, const char *content,
                      size_t zeros)
{
    static const char blocks[64 * 512];
    char header[512] = "";
    size_t bytes = zeros ? zeros : strlen(content);
    unsigned sum = 8 * ' ';
    snprintf(header, 100, "%s", name);
    snprintf(header + 124, 12, "%011o", (unsigned)bytes);
    header[156] = type;
    snprintf(header + 157, 100, "%s", link);
    memcpy(header + 257, "ustar\00000", 8);
    for (int i = 0; i < 512; i++)
        sum += (unsigned char)header[i];
    snprintf(header + 148, 8, "%06o", sum);
    fwrite(header, 1, 512, file);
    if (!zeros)
        fwrite(content, 1, bytes, file);
    for (size_t left = zeros; left > 0; left -= left < sizeof blocks ? left : sizeof blocks)
        fwrite(blocks, 1, left < sizeof blocks ? left : sizeof blocks, file);
    fwrite(blocks, 1, (512 - bytes % 512) % 512, file);
}

static void put_end(FILE *file)
{
    static const char zeros[1024];
    fwrite(zeros, 1, sizeof zeros, file);
}

/* One core with two processors. */
static const char *const machine[][2] = {{"sys/devices/system/cpu/online", "0-1\n"},
                                         {"sys/devices/system/cpu/cpu0/topology/core_id", "0\n"},
                                         {"sys/devices/system/cpu/cpu0/topology/thread_siblings", "3\n"},
                                         {"sys/devices/system/cpu/cpu1/topology/core_id", "0\n"},
                                         {"sys/devices/system/cpu/cpu1/topology/thread_siblings", "3\n"}};
enum { MACHINE_FILES = sizeof machine / sizeof *machine };

static void put_machine(FILE *file, const char *folder)
{
    for (int i = 0; i < MACHINE_FILES; i++) {
        char name[100];
        snprintf(name, sizeof name, "%s%s", folder, machine[i][0]);
        put_entry(file, name, '0', "", machine[i][1], 0);
    }
}

/* `pack` is a command that compresses, or "cat". */
static FILE *open_archive(const char *path, const char *pack)
{
    char command[400];
    snprintf(command, sizeof command, "%s >'%s'", pack, path);
    return popen(command, "w");
}

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s", directory_file(name));
    return path;
}

/* -- what must hold afterwards -- */

static int count_files(const char *folder)
{
    int n = 0;
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing && (entry = readdir(listing)) != NULL;)
        n += entry->d_name[0] != '.';
    if (listing)
        closedir(listing);
    return n;
}

static void assert_loads(const char *path)
{
    tsr_topology *topo = NULL;
    if (tsr_topology_load(path, NULL, &topo) != TSR_OK)
        fail_msg("%s: %s", path, tsr_last_error());
    assert_null(topology_fault(topo));
    assert_int_equal(topo->n_pus, 2);
    assert_int_equal(topo->n_cores, 1);
    tsr_topology_destroy(topo);
    assert_int_equal(count_files(temporary), 0);
}

static void assert_refused(const char *path, tsr_status expected, const char *phrase)
{
    tsr_topology *topo = NULL;
    tsr_status status = tsr_topology_load(path, NULL, &topo);
    if (status != expected || !strstr(tsr_last_error(), phrase))
        fail_msg("%s: %s: %s, not '%s'", path, tsr_status_name(status), tsr_last_error(), phrase);
    assert_non_null(strstr(tsr_last_error(), path));
    assert_null(strchr(tsr_last_error(), '\n'));
    assert_null(topo);
    assert_int_equal(count_files(temporary), 0);
}

/* -- archives that are read -- */

static void every_compression_is_read(void **state)
{
    (void)state;
    static const char *const packs[] = {"cat", "gzip", "bzip2", "xz", "zstd"};
    for (size_t i = 0; i < sizeof packs / sizeof *packs; i++) {
        const char *path = path_of(packs[i]);
        char command[64];
        snprintf(command, sizeof command, "command -v %s >/dev/null", packs[i]);
        if (system(command) != 0) {
            print_message("skipped: no %s\n", packs[i]);
            continue;
        }
        FILE *file = open_archive(path, packs[i]);
        put_machine(file, i % 2 ? "./machine/" : "./");
        put_end(file);
        assert_int_equal(pclose(file), 0);
        assert_loads(path);
    }
}

/* To the tar command the first is a machine named "a", and the others options. */
static void names_mean_files(void **state)
{
    (void)state;
    static const char *const names[] = {"a:b.tar", "--help", "-x.tar"};
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        FILE *file = open_archive(path_of(names[i]), "gzip");
        assert_non_null(file);
        put_machine(file, "");
        put_end(file);
        assert_int_equal(pclose(file), 0);
        assert_int_equal(chdir(directory_path()), 0);
        assert_loads(names[i]);
        assert_int_equal(chdir(here), 0);
    }
}

/* The names are in the entries before the files, in GNU's form and in POSIX's. */
static void long_names_are_read(void **state)
{
    (void)state;
    const char *path = path_of("long");
    FILE *file = open_archive(path, "cat");
    for (int i = 0; i < MACHINE_FILES; i++) {
        char record[128];
        int length = (int)strlen(machine[i][0]) + (int)sizeof "00 path=\n" - 1;
        snprintf(record, sizeof record, "%d path=%s\n", length, machine[i][0]);
        assert_int_equal(strlen(record), length);
        put_entry(file, "name", i % 2 ? 'x' : 'L', "", i % 2 ? record : machine[i][0], 0);
        put_entry(file, "etc/passwd", '0', "", machine[i][1], 0);
    }
    put_end(file);
    assert_int_equal(pclose(file), 0);
    assert_loads(path);

    file = open_archive(path, "cat");
    put_machine(file, "");
    put_entry(file, "name", 'L', "", "sys/../../out", 0);
    put_entry(file, "sys/x", '0', "", "", 0);
    put_end(file);
    assert_int_equal(pclose(file), 0);
    assert_refused(path, TSR_ERR_FORMAT, "cannot unpack 'sys/../../out'");
}

/* By their descriptions: 8 packages of 2 cores; 64 cores of 4 threads; 4 packages of 10 cores; GB10. */
static void recorded_archives_load(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int packages, nodes, cores, pus;
    } cases[] = {
        {"16amd64-8n2c.tar.bz2", 8, 8, 16, 16},
        {"256ppc-8n8s4t.tar.bz2", 64, 8, 64, 256},
        {"40intel64-2g2n4c+pcilocality.tar.bz2", 4, 4, 40, 40},
        {"nvidia-dgx-gb10.tar.bz2", 1, 1, 20, 20},
    };
    if (access(SHARED, R_OK) != 0) {
        print_message("skipped: no recorded machines at " SHARED "\n");
        skip();
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[256];
        tsr_topology *topo = NULL;
        snprintf(path, sizeof path, SHARED "/%s", cases[i].name);
        if (tsr_topology_load(path, NULL, &topo) != TSR_OK)
            fail_msg("%s: %s", path, tsr_last_error());
        assert_int_equal(topo->n_packages, cases[i].packages);
        assert_int_equal(topo->n_numa_nodes, cases[i].nodes);
        assert_int_equal(topo->n_cores, cases[i].cores);
        assert_int_equal(topo->n_pus, cases[i].pus);
        tsr_topology_destroy(topo);
    }
    assert_int_equal(count_files(temporary), 0);
}

/* -- archives that are refused -- */

static void entries_cannot_leave_the_folder(void **state)
{
    (void)state;
    static const struct {
        const char *first, *first_link, *name;
        char type;
        const char *phrase;
    } cases[] = {
        {NULL, NULL, "/sys/x", '0', "cannot unpack '/sys/x'"},
        {NULL, NULL, "sys/../../x", '0', "cannot unpack 'sys/../../x'"},
        {"sys/up", "..", "sys/up/x", '0', "cannot unpack 'sys/up/x'"}, /* through a link */
        {"sys/x", "/etc", "sys/y", '0', "link 'sys/x' leads out"},
        {"sys/x", "../..", "sys/y", '0', "link 'sys/x' leads out"},
        {NULL, NULL, "sys/x", '1', "no file, directory or symbolic link"},
        {NULL, NULL, "proc/x", '6', "no file, directory or symbolic link"}, /* a FIFO, which blocks */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = path_of("out");
        FILE *file = open_archive(path, "cat");
        put_machine(file, "");
        if (cases[i].first)
            put_entry(file, cases[i].first, '2', cases[i].first_link, "", 0);
        put_entry(file, cases[i].name, cases[i].type, "sys/devices", "", 0);
        put_end(file);
        assert_int_equal(pclose(file), 0);
        assert_refused(path, TSR_ERR_FORMAT, cases[i].phrase);
    }
}

static void what_is_outside_of_sys_and_proc_is_passed_over(void **state)
{
    (void)state;
    const char *path = path_of("rest");
    FILE *file = open_archive(path, "cat");
    put_entry(file, "etc/hard", '1', "/etc/passwd", "", 0);
    put_entry(file, "a/b/sys/x", '6', "", "", 0);
    put_entry(file, "dev/zero", '0', "", "", 1 << 20);
    put_machine(file, "");
    put_end(file);
    assert_int_equal(pclose(file), 0);
    assert_loads(path);
}

static void bombs_are_stopped(void **state)
{
    (void)state;
    const char *path = path_of("bomb");
    FILE *file = open_archive(path, "gzip -1");
    put_machine(file, "");
    put_entry(file, "etc/zeros", '0', "", "", TSR_UNPACK_BYTES);
    put_end(file);
    assert_int_equal(pclose(file), 0);
    assert_refused(path, TSR_ERR_FORMAT, "unpacks to more than 256 MiB");

    file = open_archive(path, "gzip -1");
    for (int i = 0; i <= TSR_UNPACK_ENTRIES; i++)
        put_entry(file, "etc/nothing", '0', "", "", 0);
    put_end(file);
    assert_int_equal(pclose(file), 0);
    assert_refused(path, TSR_ERR_FORMAT, "more than 200000 entries");

    file = open_archive(path, "gzip -1");
    put_machine(file, "");
    put_entry(file, "sys/zeros", '0', "", "", 17 << 20);
    put_end(file);
    assert_int_equal(pclose(file), 0);
    assert_refused(path, TSR_ERR_FORMAT, "file 'sys/zeros' of 17825792 bytes is too large");
}

static void damaged_archives_are_refused(void **state)
{
    (void)state;
    const char *path = path_of("damaged");
    FILE *file = open_archive(path, "head -c 700");
    put_machine(file, "");
    assert_int_equal(pclose(file), 0);
    assert_refused(path, TSR_ERR_FORMAT, "Truncated");

    file = open_archive(path, "gzip");
    fputs("no archive, but well compressed; longer than a block of 512 bytes", file);
    for (int i = 0; i < 60; i++)
        fputs("0123456789", file);
    assert_int_equal(pclose(file), 0);
    assert_refused(path, TSR_ERR_FORMAT, "Unrecognized archive format");

    file = open_archive(path, "gzip | head -c -30");
    put_machine(file, "");
    put_end(file);
    assert_int_equal(pclose(file), 0);
    assert_refused(path, TSR_ERR_FORMAT, "truncated gzip input");

    file = open_archive(path, "gzip");
    put_entry(file, "sys/x", '0', "", "x", 0);
    put_end(file);
    assert_int_equal(pclose(file), 0);
    assert_refused(path, TSR_ERR_FORMAT, "does not contain sys/devices/system/cpu");
}

/* -- archives that never end -- */

/* A FIFO, which has a reader as long as the process that unpacks it exists. */
static const char *make_fifo(const char *name)
{
    const char *path = path_of(name);
    assert_int_equal(mkfifo(path, 0600), 0);
    return path;
}

/* Blocks until the other end is read. */
static int open_for_writing(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void assert_gone(int fd)
{
    int waited_ms = 0;
    ssize_t put = 0;
    while ((count_files(temporary) > 0 || (put = write(fd, "", 1)) == 1) && waited_ms < 20000) {
        usleep(20 * 1000);
        waited_ms += 20;
    }
    assert_int_equal(count_files(temporary), 0);
    assert_true(put == -1 && errno == EPIPE);
    close(fd);
}

static void *open_in_thread(void *fd_out)
{
    *(int *)fd_out = open_for_writing(path_of("hangs"));
    return NULL;
}

static void a_deadline_ends_an_archive_that_hangs(void **state)
{
    (void)state;
    tsr_topology *topo = NULL;
    pthread_t thread;
    int fd;
    const char *path = make_fifo("hangs");
    assert_int_equal(pthread_create(&thread, NULL, open_in_thread, &fd), 0);
    assert_int_equal(tsr_topo_read_archive(path, 1000, &topo), TSR_ERR_TIMEOUT);
    assert_non_null(strstr(tsr_last_error(), path));
    assert_null(topo);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_gone(fd);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

static void a_killed_caller_leaves_nothing_behind(void **state)
{
    (void)state;
    static const int signals[] = {SIGKILL, SIGINT};
    const char *path = make_fifo("killed");
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        pid_t caller = fork();
        if (caller == 0) {
            tsr_topology *topo = NULL;
            (void)setpgid(0, 0);
            (void)!tsr_topo_read_archive(path, 0, &topo);
            _exit(0);
        }
        int fd = open_for_writing(path);
        assert_int_equal(count_files(temporary), 1);
        /* A terminal sends SIGINT to the whole group. */
        assert_int_equal(kill(signals[i] == SIGINT ? -caller : caller, signals[i]), 0);
        assert_int_equal(waitpid(caller, NULL, 0), caller);
        assert_gone(fd);
    }
}

static void a_place_that_cannot_be_written_is_named(void **state)
{
    (void)state;
    const char *path = path_of("places");
    FILE *file = open_archive(path, "cat");
    put_machine(file, "");
    put_end(file);
    assert_int_equal(pclose(file), 0);
    setenv("TMPDIR", "/proc/no/such", 1);
    tsr_topology *topo = NULL;
    assert_int_equal(tsr_topology_load(path, NULL, &topo), TSR_ERR_IO);
    assert_non_null(strstr(tsr_last_error(), "in '/proc/no/such': No such file"));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    setenv("TMPDIR", temporary, 1);
}

static int make_folders(void **state)
{
    (void)state;
    directory_path(); /* before TMPDIR is another */
    /* In memory where possible: a recorded archive has thousands of files. */
    snprintf(temporary, sizeof temporary, "%s/tsr-test-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(temporary));
    setenv("TMPDIR", temporary, 1);
    (void)signal(SIGPIPE, SIG_IGN);
    return 0;
}

static int remove_folders(void **state)
{
    (void)state;
    return rmdir(temporary); /* every test leaves it empty */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_compression_is_read),
        cmocka_unit_test(names_mean_files),
        cmocka_unit_test(long_names_are_read),
        cmocka_unit_test(recorded_archives_load),
        cmocka_unit_test(entries_cannot_leave_the_folder),
        cmocka_unit_test(what_is_outside_of_sys_and_proc_is_passed_over),
        cmocka_unit_test(bombs_are_stopped),
        cmocka_unit_test(damaged_archives_are_refused),
        cmocka_unit_test(a_deadline_ends_an_archive_that_hangs),
        cmocka_unit_test(a_killed_caller_leaves_nothing_behind),
        cmocka_unit_test(a_place_that_cannot_be_written_is_named),
    };
    return cmocka_run_group_tests(tests, make_folders, remove_folders);
}
