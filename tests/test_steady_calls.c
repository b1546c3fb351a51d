/* Once a session is warm, decoding a token makes no system call but to sleep and to wake. A child process
 * forbids itself everything else with a seccomp filter over all of its threads and goes on decoding: the
 * kernel would end it at the first other call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include <tsr/runtime.h>
#include <tsr/session.h>

#include "support/directory.h"
#include "support/sanitized.h"
#include "support/synth_model.h"

#if defined(__linux__) && defined(__x86_64__) && !TSR_TEST_SANITIZED
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { WARM_TOKENS = 4, TOKENS = 20, NO_FILTER = 77, FAILED = 78 };

/* Sleeping and waking; leaving at the end; the clock, which is a system call where the kernel maps none. */
static bool allow_sleeping_only(void)
{
#define ALLOW(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_futex),
        ALLOW(SYS_restart_syscall),
        ALLOW(SYS_clock_gettime),
        ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    const struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

static bool decode(tsr_session *session, int n, float *logits)
{
    for (int i = 0; i < n; i++) {
        int32_t token = 7 + i;
        const tsr_batch batch = {.n_tokens = 1, .tokens = &token};
        if (tsr_session_decode(session, &batch, logits) != TSR_OK)
            return false;
    }
    return true;
}

/* Returns the child's exit status. One more system call, `extra`, shows that the filter bites. */
static int decode_filtered(const char *path, const char *devices, bool extra)
{
    static float logits[512];
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_runtime *rt;
    tsr_model *model;
    tsr_session *session;
    runtime_config.devices = devices;
    config.session.n_ctx = 64;
    if (tsr_runtime_open(&runtime_config, &rt) != TSR_OK ||
        tsr_model_open(rt, path, &config, &model) != TSR_OK ||
        tsr_session_create(model, &session) != TSR_OK || !decode(session, WARM_TOKENS, logits))
        return FAILED;
    if (!allow_sleeping_only())
        return NO_FILTER;
    if (extra)
        syscall(SYS_getppid);
    return decode(session, TOKENS, logits) ? 0 : FAILED;
}

static int status_of_child(const char *path, const char *devices, bool extra)
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(decode_filtered(path, devices, extra));
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void a_warm_token_only_sleeps_and_wakes(void **state)
{
    (void)state;
    static const char *const devices[] = {"host:1,threads=1", "host:1,threads=2", "host:2,threads=1"};
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    char path[DIRECTORY_PATH];
    close(directory_new(path));
    synth_model_write(&config, path);
    for (int i = 0; i < 3; i++) {
        const int status = status_of_child(path, devices[i], false);
        if (WIFEXITED(status) && WEXITSTATUS(status) == NO_FILTER) {
            unlink(path);
            print_message("skipped: this system lets no process filter its own system calls\n");
            skip();
        }
        if (WIFSIGNALED(status))
            print_message("%s: signal %d\n", devices[i], WTERMSIG(status));
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    const int status = status_of_child(path, devices[0], true);
    unlink(path);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSYS);
}
#else
static void a_warm_token_only_sleeps_and_wakes(void **state)
{
    (void)state;
    print_message("skipped: needs seccomp on x86-64 Linux, and no sanitizer, which makes calls of its own\n");
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_warm_token_only_sleeps_and_wakes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
