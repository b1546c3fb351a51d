/* Text and colours of SVG pictures that need no other file. */
#ifndef TSR_TOOLS_BENCH_SVG_H
#define TSR_TOOLS_BENCH_SVG_H

#include <stdio.h>

typedef enum svg_font { SVG_PLAIN, SVG_SOFT, SVG_TITLE } svg_font; /* 12, 11 and bold 14 px */
typedef enum svg_anchor { SVG_START, SVG_MIDDLE, SVG_END } svg_anchor;

/* Content of a <style> element: the classes of text, and a, b, c, best, ink, grid, card, page for shapes,
 * each in a light and a dark colour; the colours are also the variables --ink, --soft, --line, --card,
 * --page and --best. */
void svg_style(FILE *out);

/* The text with &, <, > and quotes escaped, for XML and HTML. */
void svg_escape(const char *text, FILE *out);

/* At least the pixels that the text takes in the usual sans-serif fonts. */
double svg_text_width(svg_font font, const char *text);

/* A <text> of at most `width` pixels: a longer text ends with an ellipsis, and the whole is its <title>. */
void svg_text(FILE *out, double x, double y, svg_anchor anchor, svg_font font, double width,
              const char *text);

#endif
