#!/usr/bin/env bash
# Build llama-perplexity from the llama.cpp source that the llama-cpp-python sdist carries, twice, into bin/:
#   llama-perplexity         as it is
#   llama-perplexity-gelu32  without ggml's fp16 table of the GELU
# Needs cmake, ninja and a C++ compiler.
set -euo pipefail
version=0.3.36
pip download --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version"
echo "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e  llama_cpp_python-$version.tar.gz" | sha256sum -c
tar xzf "llama_cpp_python-$version.tar.gz"
source=llama_cpp_python-$version/vendor/llama.cpp
cmake -S "$source" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF -DGGML_OPENMP=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TOOLS=ON
mkdir -p bin
cmake --build build --target llama-perplexity
cp build/bin/llama-perplexity bin/
# No option chooses the table; this line of the source does.
sed -i 's|^#define GGML_GELU_FP16|//#define GGML_GELU_FP16|' "$source/ggml/src/ggml-cpu/vec.h"
cmake --build build --target llama-perplexity
cp build/bin/llama-perplexity bin/llama-perplexity-gelu32
