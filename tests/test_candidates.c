/* The likeliest tokens in place of all logits: on host devices, and what the calls refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/candidates_check.h"
#include "support/directory.h"
#include "support/runner.h"
#include "support/synth_model.h"

static char path[DIRECTORY_PATH];

static int write_model(void **state)
{
    (void)state;
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    model.n_layers = 1;
    close(directory_new(path));
    synth_model_write(&model, path);
    return 0;
}

static void candidates_do_not_depend_on_the_split(void **state)
{
    (void)state;
    candidates_check(path, "host", NULL);
    candidates_check(path, "host:2", "3,1");
    candidates_check(path, "host:3", "1,0,2");
    candidates_check(path, "host:3", "1,4,2");
}

static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    tsr_candidate candidates[TSR_MAX_CANDIDATES];
    const tsr_batch batch = {.n_tokens = 1, .tokens = (int32_t[]){1}};
    runner r;
    runner_open(&r, path, "host", NULL, NULL);
    assert_int_equal(tsr_session_decode_candidates(r.session, &batch, 0, candidates), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_decode_candidates(r.session, &batch, TSR_MAX_CANDIDATES + 1, candidates),
                     TSR_ERR_INVALID);
    assert_int_equal(tsr_session_decode_candidates(r.session, &batch, 1, NULL), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_decode_candidates(NULL, &batch, 1, candidates), TSR_ERR_INVALID);
    assert_int_equal(tsr_session_length(r.session, 0), 0);
    runner_ok(tsr_session_decode_candidates(r.session, &batch, TSR_MAX_CANDIDATES, candidates), "the most");
    runner_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_do_not_depend_on_the_split),
        cmocka_unit_test(numbers_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, write_model, NULL);
}
