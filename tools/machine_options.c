/* The options that name a machine; see machine_options.h. */
#include "machine_options.h"

#include <tsr/machine.h>

int tool_machine_options_check(const char *command, const tool_machine_options *options)
{
    if (options->file && options->text) {
        fprintf(stderr, "tsr %s: --machine and --machine-file each name a machine; give only one\n", command);
        return TOOL_EXIT_USAGE;
    }
    if (options->cards && !options->file && !options->text) {
        fprintf(stderr,
                "tsr %s: --card needs --machine-file or --machine; the cards of this machine are known\n",
                command);
        return TOOL_EXIT_USAGE;
    }
    return TOOL_GO_ON;
}

tsr_status tool_machine_topology(const tool_machine_options *options, const tsr_logger *logger,
                                 tsr_topology **topo_out)
{
    tsr_topology_config config = tsr_topology_config_default();
    config.logger = *logger;
    config.cards = options->cards;
    if (options->text)
        return tsr_topology_parse(options->text, &config, topo_out);
    if (options->file)
        return tsr_topology_load(options->file, &config, topo_out);
    return tsr_topology_discover(&config, topo_out);
}
