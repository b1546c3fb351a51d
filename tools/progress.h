/* A progress bar on a terminal. */
#ifndef TSR_TOOLS_PROGRESS_H
#define TSR_TOOLS_PROGRESS_H

/* Draws a bar on stderr, and removes it at 1; no effect if stderr is not a terminal. Fits
 * tsr_model_config.progress; `user` is a const char *, the name of the operation ("loading"). */
void tool_progress(double fraction, void *user);

#endif
