/** @file
 * The whole library in one include.
 *
 * In layers, the lowest first: status, log, bytes and types; topology, machine, device_list, links, rates,
 * isa and split (machines and proportions); runtime, trace, memory, transport, tensor, buffer and graph
 * (devices, and computing on them); gguf, config, plan, fit, model, session, tokenizer, chat and sampler
 * (language models). An engine that brings its own model code needs the first three layers only. */
#ifndef TSR_TSR_H
#define TSR_TSR_H

#include <tsr/buffer.h>
#include <tsr/bytes.h>
#include <tsr/chat.h>
#include <tsr/config.h>
#include <tsr/device_list.h>
#include <tsr/experts.h>
#include <tsr/fit.h>
#include <tsr/gguf.h>
#include <tsr/graph.h>
#include <tsr/isa.h>
#include <tsr/kv.h>
#include <tsr/links.h>
#include <tsr/log.h>
#include <tsr/machine.h>
#include <tsr/memory.h>
#include <tsr/model.h>
#include <tsr/ops.h>
#include <tsr/plan.h>
#include <tsr/rates.h>
#include <tsr/runtime.h>
#include <tsr/sampler.h>
#include <tsr/session.h>
#include <tsr/split.h>
#include <tsr/states.h>
#include <tsr/status.h>
#include <tsr/tensor.h>
#include <tsr/tokenizer.h>
#include <tsr/topology.h>
#include <tsr/trace.h>
#include <tsr/transport.h>
#include <tsr/types.h>
#include <tsr/version.h>

#endif
