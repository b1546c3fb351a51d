/* Answers to options of llama.cpp that tsr spells otherwise or does not have. */
#ifndef TSR_TOOLS_FOREIGN_OPTIONS_H
#define TSR_TOOLS_FOREIGN_OPTIONS_H

/* What to type instead of the option `name` ("-t"), as the rest of a sentence that begins with the name;
 * NULL: no such option of llama.cpp is known. */
const char *tool_foreign_option(const char *name);

#endif
