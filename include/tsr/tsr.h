/** @file
 * The whole library in one include.
 *
 * From the ground up: status, log, types (values and words); topology, links and split (machines and
 * proportions); runtime, tensor, buffer and graph (devices, and computing on them); gguf, plan, model,
 * session, tokenizer and sampler (language models). An engine that brings its own model code needs the first
 * three groups only. */
#ifndef TSR_TSR_H
#define TSR_TSR_H

#include <tsr/buffer.h>
#include <tsr/chat.h>
#include <tsr/fit.h>
#include <tsr/gguf.h>
#include <tsr/graph.h>
#include <tsr/isa.h>
#include <tsr/links.h>
#include <tsr/log.h>
#include <tsr/memory.h>
#include <tsr/model.h>
#include <tsr/plan.h>
#include <tsr/rates.h>
#include <tsr/runtime.h>
#include <tsr/sampler.h>
#include <tsr/session.h>
#include <tsr/split.h>
#include <tsr/status.h>
#include <tsr/tensor.h>
#include <tsr/tokenizer.h>
#include <tsr/topology.h>
#include <tsr/transport.h>
#include <tsr/types.h>
#include <tsr/version.h>

#endif
