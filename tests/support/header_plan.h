/* Planning what a gguf_writer holds, from a file of its header alone. */
#ifndef TSR_TESTS_HEADER_PLAN_H
#define TSR_TESTS_HEADER_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/plan.h>

#include "support/arch_models.h"
#include "support/directory.h"

typedef struct header_fixture {
    char path[DIRECTORY_PATH]; /* of the header */
    tsr_topology *topo;
} header_fixture;

/* For cmocka: *state is a header_fixture. */
int header_set_up(void **state);
int header_tear_down(void **state);

/* Plan what `w` holds, which is destroyed, for n host devices of 400 GiB. */
tsr_status header_plan(const header_fixture *f, gguf_writer *w, int n_devices, const tsr_model_config *config,
                       tsr_plan **plan_out);

/* The same with n_ctx tokens and even shares; fails the test if there is no plan. */
tsr_plan *header_planned(const header_fixture *f, gguf_writer *w, int n_devices, int64_t n_ctx);

size_t header_bytes(const tsr_plan *plan, int device, tsr_memory_owner owner);

/* Whether a note of the plan has `part` in it. */
bool header_has_note(const tsr_plan *plan, const char *part);

/* One of arch_models. */
const struct arch_model *header_published(const char *title);

/* Fail the test unless the last error is one line that has `object` in it. */
void header_check_message(const char *object);

#endif
