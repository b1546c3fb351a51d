/* The library's allocations, and the tool that makes them fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sys/mman.h>

#include "core/mem.h"
#include "support/failing_alloc.h"

static void calloc_zeroes_and_checks_the_product(void **state)
{
    (void)state;
    unsigned char *block = tsr_mem_calloc(3, 5);
    assert_non_null(block);
    for (int i = 0; i < 15; i++)
        assert_int_equal(block[i], 0);
    tsr_mem_free(block);
    assert_null(tsr_mem_calloc(SIZE_MAX / 2, 3));
    assert_null(tsr_mem_realloc(NULL, SIZE_MAX / 2, 3));
}

static void an_empty_array_is_a_block_like_any_other(void **state)
{
    (void)state;
    void *block = tsr_mem_calloc(0, 8);
    assert_non_null(block);
    block = tsr_mem_realloc(block, 0, 8);
    assert_non_null(block);
    tsr_mem_free(block);
    tsr_mem_free(NULL);
}

static void array_reports_bytes_and_purpose(void **state)
{
    (void)state;
    int *numbers = NULL;
    assert_int_equal(tsr_mem_array(SIZE_MAX / 2, 4, "the numbers", &numbers), TSR_ERR_MEMORY);
    assert_null(numbers);
    assert_non_null(strstr(tsr_last_error(), "the numbers"));
    assert_int_equal(tsr_mem_array(7, sizeof *numbers, "the numbers", &numbers), TSR_OK);
    assert_non_null(numbers);
    tsr_mem_free(numbers);
}

/* One call that allocates in every way the library has. */
static tsr_status allocate_all_ways(void)
{
    int *numbers = NULL;
    tsr_status status = TSR_ERR_MEMORY;
    char *text = tsr_mem_strdup("text");
    void *grown = tsr_mem_realloc(NULL, 10, 1);
    void *larger = grown ? tsr_mem_realloc(grown, 20, 1) : NULL;
    void *map = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (text && larger && map != MAP_FAILED)
        status = tsr_mem_array(4, sizeof *numbers, "the numbers", &numbers);
    tsr_mem_free(numbers);
    if (map != MAP_FAILED)
        munmap(map, 4096);
    tsr_mem_free(larger ? larger : grown);
    tsr_mem_free(text);
    return status;
}

static void each_allocation_can_fail_in_turn(void **state)
{
    (void)state;
    int64_t blocks = failing_alloc_live();
    int64_t maps = failing_alloc_live_maps();
    int n = 1;
    for (;; n++) {
        failing_alloc_set(n);
        tsr_status status = allocate_all_ways();
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(failing_alloc_live_maps(), maps);
        if (!fired) {
            assert_int_equal(status, TSR_OK);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
    }
    assert_int_equal(n, 6); /* strdup, two reallocs, mmap, array: five places, then a run without a failure */
}

static void memory_can_run_out_for_good(void **state)
{
    (void)state;
    failing_alloc_set_from(2);
    void *first = tsr_mem_calloc(1, 1);
    void *second = tsr_mem_calloc(1, 1);
    void *third = tsr_mem_calloc(1, 1);
    assert_int_equal(failing_alloc_count(), 3);
    failing_alloc_set(0);
    assert_non_null(first);
    assert_null(second);
    assert_null(third);
    tsr_mem_free(first);
}

static void *allocate_a_hundred(void *failures_out)
{
    for (int i = 0; i < 100; i++) {
        void *block = tsr_mem_calloc(1, 1);
        *(int *)failures_out += block == NULL;
        tsr_mem_free(block);
    }
    return NULL;
}

static void threads_share_one_count(void **state)
{
    (void)state;
    pthread_t threads[4];
    int failures[4] = {0};
    failing_alloc_set(4 + 250); /* four thread creations come first */
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, allocate_a_hundred, &failures[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(failing_alloc_count(), 4 + 400);
    failing_alloc_set(0);
    assert_int_equal(failures[0] + failures[1] + failures[2] + failures[3], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calloc_zeroes_and_checks_the_product),
        cmocka_unit_test(an_empty_array_is_a_block_like_any_other),
        cmocka_unit_test(array_reports_bytes_and_purpose),
        cmocka_unit_test(each_allocation_can_fail_in_turn),
        cmocka_unit_test(memory_can_run_out_for_good),
        cmocka_unit_test(threads_share_one_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
