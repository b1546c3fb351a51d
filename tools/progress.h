/* A progress bar on a terminal. */
#ifndef TSR_TOOLS_PROGRESS_H
#define TSR_TOOLS_PROGRESS_H

/* Draws a bar on stderr, and removes it at 1; nothing where stderr is no terminal. Fits
 * tsr_model_config.progress; `user` is a const char *, what is going on ("loading"). */
void tool_progress(double fraction, void *user);

#endif
