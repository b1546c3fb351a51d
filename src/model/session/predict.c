/* Predictions: the prediction layer over tokens of a sequence that decoding has appended. Its keys and values
 * are stored at the positions of the hidden states, in the pages of the sequence. A position's depend on the
 * token after it, so that a page which several sequences share is copied before. */
#include "core/checksum.h"
#include "core/mem.h"
#include "model/session/session.h"

static tsr_status check(const tsr_session *session, const tsr_prediction *p, const float *logits)
{
    const tsr_hparams *hp = &session->model->shape.hparams;
    tsr_status status = TSR_OK;
    if (!hp->predicts)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_session_predict: the model was opened without its prediction layer "
                        "(config.prediction.load)");
    if (!p || !p->tokens || !p->hidden || !logits || p->n_tokens < 1)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_session_predict: tokens, hidden states and logits are needed, and at "
                        "least one token");
    TSR_TRY(tsr_session_check_seq(session, p->seq));
    const int64_t length = tsr_kv_length(session->kv, p->seq);
    if (p->position < 0 || p->position > length || p->n_tokens > length - p->position)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_session_predict: %lld positions from %lld on; sequence %d has %lld tokens",
                        (long long)p->n_tokens, (long long)p->position, p->seq, (long long)length);
    for (int64_t i = 0; i < p->n_tokens; i++)
        if (p->tokens[i] < 0 || p->tokens[i] >= hp->n_vocab)
            return tsr_fail(TSR_ERR_INVALID,
                            "tsr_session_predict: token %lld is %d; the vocabulary has 0 to %lld",
                            (long long)i, p->tokens[i], (long long)hp->n_vocab - 1);
out:
    return status;
}

/* Tokens [begin, begin + n) of the prediction. */
static tsr_status set_inputs(tsr_session *session, const tsr_prediction *p, int64_t begin, int64_t n,
                             tsr_step *step)
{
    tsr_status status = TSR_OK;
    const tsr_step_graph *in = &step->inputs;
    const int64_t n_embd = session->model->shape.hparams.n_embd;
    const int32_t last = (int32_t)n - 1;
    for (int64_t i = 0; i < n; i++) {
        session->positions[i] = (int32_t)(p->position + begin + i);
        session->seqs[i] = p->seq;
    }
    TSR_TRY(tsr_session_set_input(in->tokens, p->tokens + begin, (size_t)n * sizeof(int32_t)));
    TSR_TRY(tsr_session_set_input(in->hidden_in, p->hidden + begin * n_embd,
                                  (size_t)(n * n_embd) * sizeof(float)));
    TSR_TRY(tsr_session_set_rope(session, n, in));
    TSR_TRY(tsr_session_set_input(in->output_rows, &last, sizeof last));
    TSR_TRY(tsr_kv_inputs_set(in->kv_inputs, session->seqs, session->positions));
out:
    return status;
}

static tsr_status prepare(tsr_session *session, const tsr_prediction *p, int64_t begin, int64_t n,
                          tsr_step **step_out)
{
    tsr_status status = TSR_OK;
    const int group = tsr_kv_group_of(session->kv, (int)session->model->shape.hparams.n_layers - 1);
    if (session->model->lost)
        return tsr_fail(TSR_ERR_DEVICE, "the model lost weights when a change of its split failed; save its "
                                        "sequences, close it and open it anew");
    TSR_TRY(tsr_session_step(session, (tsr_step_shape){.n_tokens = n, .n_outputs = 1, .predicts = true},
                             step_out));
    TSR_TRY(tsr_kv_own(session->kv, group, p->seq, p->position + begin, p->position + begin + n));
    TSR_TRY(set_inputs(session, p, begin, n, *step_out));
out:
    return status;
}

/* A fingerprint of the arguments that must be the same in all processes. */
static uint64_t fingerprint_of(const tsr_session *session, const tsr_prediction *p)
{
    const int64_t numbers[] = {p->seq, p->position, p->n_tokens, tsr_kv_length(session->kv, p->seq)};
    uint64_t sum = tsr_hash_words(0, numbers, sizeof numbers);
    return tsr_hash_words(sum, p->tokens, (size_t)p->n_tokens * sizeof *p->tokens);
}

tsr_status tsr_session_predict(tsr_session *session, const tsr_prediction *p, float *logits)
{
    if (!session)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_predict: session must not be NULL");
    const int64_t n_batch = session->model->config.session.n_batch;
    tsr_processes *processes = session->model->rt->processes;
    tsr_step *step = NULL;
    tsr_status status = check(session, p, logits);
    tsr_processes_step(processes, true);
    status = tsr_processes_agree_on(processes, status, "tsr_session_predict",
                                    status == TSR_OK ? fingerprint_of(session, p) : 0);
    for (int64_t begin = 0; status == TSR_OK && begin < p->n_tokens; begin += n_batch) {
        status = prepare(session, p, begin, TSR_MIN(n_batch, p->n_tokens - begin), &step);
        status = tsr_processes_agree(processes, status, "tsr_session_predict");
        if (status == TSR_OK)
            status = tsr_program_run(step->program);
        session->stats.n_steps += status == TSR_OK;
    }
    if (status == TSR_OK)
        status = tsr_tensor_get(step->result, logits, 0,
                                (size_t)session->model->shape.hparams.n_vocab * sizeof(float));
    tsr_processes_step(processes, false);
    return status;
}
