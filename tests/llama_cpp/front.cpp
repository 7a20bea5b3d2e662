// Reads the options of README.md for perplexity.cpp, in the place of llama.cpp's arg.cpp, which needs all of its
// chat templates, parsers and downloads.  What an option does is what arg.cpp does.
#include "arg.h"
#include "common.h"
#include "log.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

static std::string read(const std::string & name) {
    std::ifstream file(name, std::ios::binary);
    if (!file) throw std::runtime_error("cannot open " + name);
    return { std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>() };
}

bool common_params_parse(int argc, char ** argv, common_params & params, llama_example, void (*)(int, char **)) {
    for (int i = 1; i < argc; i++) {
        const std::string option = argv[i];
        if (option == "--kl-divergence") {
            params.kl_divergence = true;
            continue;
        }
        if (++i == argc) throw std::runtime_error(option + " needs a value");
        const std::string value = argv[i];
        if (option == "-m") {
            params.model.path = value;
        } else if (option == "-f") {
            params.prompt = read(value);
            if (!params.prompt.empty() && params.prompt.back() == '\n') params.prompt.pop_back();
        } else if (option == "-c") {
            params.n_ctx = std::stoi(value);
        } else if (option == "-b") {
            params.n_batch = std::stoi(value);
        } else if (option == "-t") {
            params.cpuparams.n_threads = std::stoi(value);
        } else if (option == "-ctk" && value == "f32") {
            params.cache_type_k = GGML_TYPE_F32;
        } else if (option == "-ctv" && value == "f32") {
            params.cache_type_v = GGML_TYPE_F32;
        } else if (option == "-fa" && value == "off") {
            params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        } else if (option == "--kl-divergence-base") {
            params.logits_file = value;
        } else {
            throw std::runtime_error("unknown: " + option + " " + value);
        }
    }
    std::atexit([] { common_log_flush(common_log_main()); });  // its thread may be late with the last line
    params.fit_params = false;  // one small model on a CPU: nothing to fit
    postprocess_cpu_params(params.cpuparams);
    postprocess_cpu_params(params.cpuparams_batch, &params.cpuparams);
    return true;
}
