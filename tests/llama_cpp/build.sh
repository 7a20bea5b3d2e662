#!/usr/bin/env bash
# Build llama-perplexity against the libraries that llama-cpp-python installs, from the same source.
#   ./build.sh FOLDER       where pip put it, the folder that holds llama_cpp/
# Needs a C++ compiler.  Of llama.cpp's common code it takes what the tool runs; front.cpp reads its options.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) libraries=$1/llama_cpp/lib version=0.3.36
pip download --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version"
echo "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e  llama_cpp_python-$version.tar.gz" | sha256sum -c
tar xzf "llama_cpp_python-$version.tar.gz"
source=llama_cpp_python-$version/vendor/llama.cpp
common=$source/common
sed -e 's/@[A-Z_]*NUMBER@/0/; s/@[A-Z_]*@//' "$common/build-info.cpp.in" > build-info.cpp
names=(common log sampling fit unicode json reasoning-budget speculative ngram-cache ngram-map ngram-mod trie)
g++ -std=c++17 -O2 -pthread -o llama-perplexity \
    -I"$common" -I"$source/include" -I"$source/ggml/include" -I"$source/vendor" \
    "$here/front.cpp" "$source"/tools/perplexity/{perplexity,main}.cpp build-info.cpp \
    $(printf "$common/%s.cpp " "${names[@]}") \
    -L"$libraries" -lllama -lggml -lggml-base -lggml-cpu -Wl,-rpath,"$libraries"
