/* Candidates in place of logits: two sessions of a model compute the same tokens, one with logits and one
 * with candidates. The candidates are those of the logits, and samplers choose the same tokens. */
#ifndef TSR_TESTS_CANDIDATES_CHECK_H
#define TSR_TESTS_CANDIDATES_CHECK_H

/* Tokens that `settings` choose after a prompt, with every candidate compared, over devices and a split as
 * runner_open() takes them. */
void candidates_check(const char *path, const char *devices, const char *split);

#endif
