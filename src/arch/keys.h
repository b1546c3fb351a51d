/* The keys of a file that describe its architecture ("<architecture>.<suffix>"), read one at a time. Each key
 * that is read is noted, so that tsr_keys_refuse_unread() can refuse the rest: a key that this version does
 * not know may change what the model computes. */
#ifndef TSR_ARCH_KEYS_H
#define TSR_ARCH_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/gguf.h>

enum { TSR_KEY_BYTES = 96, TSR_MAX_KEYS_READ = 96 };

/* Begin with {.gguf, .architecture, .prediction}. */
typedef struct tsr_keys {
    const tsr_gguf *gguf;
    const char *architecture;
    char name[TSR_KEY_BYTES];            /* the key read last, with its prefix */
    const char *read[TSR_MAX_KEYS_READ]; /* suffixes; string constants of the callers */
    int n_read;
    bool prediction; /* the prediction layer is wanted */
} tsr_keys;

/* Instead of a layer: all layers together, or the layer with the largest entry. */
enum { TSR_ALL_LAYERS = -1, TSR_LARGEST_LAYER = -2 };

/* An integer in [low, high]. Files give some keys as an array with one entry per layer: `layer` says which;
 * TSR_ALL_LAYERS refuses entries that differ (TSR_ERR_UNSUPPORTED). *value keeps its default where the key is
 * absent and not required. TSR_ERR_FORMAT names the key otherwise. `suffix` must be a string constant, here
 * and below. */
tsr_status tsr_keys_int(tsr_keys *keys, const char *suffix, int64_t layer, bool required, int64_t low,
                        int64_t high, int64_t *value);

/* A real number in [low, high]; a bool; a string. *value keeps its default where the key is absent. */
tsr_status tsr_keys_real(tsr_keys *keys, const char *suffix, bool required, double low, double high,
                         double *value);
/* A real number, or that of a layer where the file has an array. */
tsr_status tsr_keys_layer_real(tsr_keys *keys, const char *suffix, int64_t layer, double low, double high,
                               double *value);
tsr_status tsr_keys_bool(tsr_keys *keys, const char *suffix, bool *value);
tsr_status tsr_keys_string(tsr_keys *keys, const char *suffix, tsr_gguf_string *value);

bool tsr_keys_have(tsr_keys *keys, const char *suffix);

/* Note `suffix` as read: this architecture's result does not depend on the key. */
void tsr_keys_ignore(tsr_keys *keys, const char *suffix);

/* TSR_ERR_UNSUPPORTED names the first key of the architecture that was not read, unless it says nothing about
 * the result of any architecture or has the value that stands for "none". `dense`: the model has no mixture
 * of experts, so keys about experts say nothing. */
tsr_status tsr_keys_refuse_unread(const tsr_keys *keys, bool dense);

#endif
