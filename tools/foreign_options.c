/* Options of llama.cpp (its common/arg.cpp and tools/llama-bench) with the answer that their users need. A
 * suggestion of the most similar name would lead them astray: "-t" is similar to "-m". Options that a command
 * has are found before this table is read. */
#include "foreign_options.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *names; /* separated by blanks */
    const char *answer;
} foreign[] = {
    {"-t --threads -tb --threads-batch",
     "threads belong to a device: `--devices host:1,threads=8`; the default is one per core"},
    {"-C --cpu-mask -Cr --cpu-range -Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict",
     "a host device has a contiguous set of cores: `--devices host:N` makes N sets; `tsr topo` shows them"},
    {"--prio --prio-batch --poll --poll-batch", "threads have no priority or polling to set; leave it out"},
    {"--numa", "each NUMA node is a device by default; `--no-mmap` copies weights into the node's memory"},
    {"-fa --flash-attn", "there is one way to compute attention; leave it out"},
    {"--mmap", "weights are mapped by default; leave it out (`--no-mmap` copies them)"},
    {"-mmp", "weights are mapped by default; `--no-mmap` copies them"},
    {"--mlock", "mapped weights are not locked; `--no-mmap` copies them into memory"},
    {"-dio --direct-io -ndio --no-direct-io", "files are mapped; `--no-mmap` reads them instead"},
    {"-nkvo --no-kv-offload --kv-offload -kvo",
     "the KV region is where attention is: `-ot attn=CPU` moves both to a host device"},
    {"--device", "the option is called `-dev` or `--devices`: `--devices cuda:0,cuda:1`"},
    {"--list-devices", "`tsr topo` lists the devices"},
    {"-fit", "the option is called `--fit`, and takes no value"},
    {"-fitt --fit-target", "the option is called `--fit-margin`"},
    {"-fitc", "the option is called `--fit-ctx`"},
    {"--no-host --no-repack -nr --repack --op-offload --no-op-offload -nopo",
     "there is nothing to choose here; leave it out"},
    {"-hf -hfr --hf-repo -hff --hf-file -mu --model-url -dr --docker-repo -hft --hf-token",
     "models are not downloaded; give a GGUF file with `-m FILE`"},
    {"-md --model-draft -hfd --hf-repo-draft -ngld --gpu-layers-draft -cd --ctx-size-draft -devd "
     "--device-draft --draft --draft-n --draft-max --draft-min --draft-p-min",
     "there is no speculative decoding; leave it out"},
    {"--lora --lora-scaled --lora-init-without-apply --control-vector --control-vector-scaled",
     "adapters are not applied; merge them into the model's file (llama.cpp: llama-export-lora)"},
    {"-mm --mmproj -mmu --mmproj-url --image --audio", "models read text only; leave it out"},
    {"--grammar --grammar-file -j --json-schema -jf --json-schema-file",
     "text is not constrained; a program that uses the library can forbid tokens in the logits"},
    {"--embedding --embeddings --pooling --rerank --reranking", "`tsr embed` prints the embedding of a text"},
    {"--override-kv", "the keys of the file count; change them with llama.cpp's gguf_set_metadata.py"},
    {"--check-tensors", "`tsr run --verify-upload` reads copied weights back and compares them"},
    {"--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor "
     "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast",
     "RoPE and its scaling are those of the file; leave it out"},
    {"-dt --defrag-thold -kvu --kv-unified --kv-split",
     "the KV region has pages, which need no setting; leave it out"},
    {"--keep --context-shift --no-context-shift -gan --grp-attn-n -gaw --grp-attn-w",
     "a full context is not shifted; `-c N` holds more tokens"},
    {"-cb --cont-batching -nocb --no-cont-batching -ns --sequences -np --parallel",
     "`tsr run` generates one text; sessions of the library batch several (`tsr plan -np N` plans them)"},
    {"--host --port --api-key --api-key-file --timeout --slots --metrics --props --alias -a",
     "there is no server; `tsr run -i` holds a conversation"},
    {"-cnv --conversation -st --single-turn", "`-i` holds a conversation, `--chat auto -p TEXT` asks once"},
    {"-no-cnv --no-conversation", "a prompt is continued as it is without `-i` and `--chat`; leave it out"},
    {"-if --interactive-first", "`-i` begins with a message of yours; leave out `-p`"},
    {"--chat-template", "the option is called `--chat`: `--chat auto` or a name such as `--chat llama3`"},
    {"--chat-template-file --jinja --no-jinja --chat-template-kwargs --reasoning-format --reasoning-budget",
     "templates are built in: `--chat auto` recognises that of the file"},
    {"-sys --system-prompt", "the option is called `--system`"},
    {"-sysf --system-prompt-file", "`--system \"$(cat FILE)\"` gives the text of a file"},
    {"--reverse-prompt", "the option is called `-r` or `--stop`"},
    {"-sp --special", "control tokens are not shown; leave it out"},
    {"-e --escape --no-escape", "texts are taken as they are; in bash, -p $'one\\ntwo' has two lines"},
    {"-mli --multiline-input", "a backslash at the end of a line continues a message; leave it out"},
    {"-bf --binary-file", "the option is called `-f`"},
    {"--predict", "the option is called `-n` or `--n-predict`"},
    {"--in-prefix --in-suffix --in-prefix-bos",
     "a chat template surrounds messages: `--chat NAME`, `--chat auto`"},
    {"--prompt-cache --prompt-cache-all --prompt-cache-ro --slot-save-path",
     "texts are not kept; a program that uses the library can (tsr_session_save)"},
    {"--temperature", "the option is called `--temp`"},
    {"--presence-penalty --frequency-penalty --typical --typical-p --mirostat --mirostat-lr --mirostat-ent "
     "--dynatemp-range --dynatemp-exp --xtc-probability --xtc-threshold --dry-multiplier --dry-base "
     "--dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --top-nsigma --top-n-sigma "
     "--samplers --sampling-seq --sampler-seq -l --logit-bias",
     "sampling has `--temp`, `--top-k`, `--top-p`, `--min-p` and `--repeat-penalty`"},
    {"--sampling-seed", "the option is called `-s` or `--seed`"},
    {"--warmup --no-warmup", "what is measured is warmed up, the rest needs none; leave it out"},
    {"--perf --no-perf", "times are shown at the end"},
    {"--color -co --simple-io --log-colors --log-disable --log-file --log-prefix --log-timestamps -lv "
     "--verbosity --log-verbosity --offline",
     "messages go to standard error, without colours: `2> FILE` keeps them, `-v` shows more"},
    {"--verbose-prompt", "tokens of the prompt are not shown; leave it out"},
    {"--json", "`tsr plan`, `tsr fit` and `tsr topo` have it; `tsr bench -o json` writes JSON"},
    {"-pg", "`-p` and `-n` give lists of tests: `-p 512 -n 128`"},
    {"-embd --delay --progress", "there is no such setting of a test; leave it out"},
};

const char *tool_foreign_option(const char *name)
{
    const size_t bytes = strlen(name);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        for (const char *at = foreign[i].names; *at; at += strspn(at, " ")) {
            size_t n = strcspn(at, " ");
            if (n == bytes && memcmp(at, name, n) == 0)
                return foreign[i].answer;
            at += n;
        }
    return NULL;
}
