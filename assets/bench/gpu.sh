#!/usr/bin/env bash
# The checks that take a real GPU, in at most eight minutes: kernels and devices against the CPU, native AVX-512 tests,
# and what the chip reaches. Rows go to CSV (default: gpu-results.csv here), with the chip's name.
#
#     assets/bench/gpu.sh [CSV]
#
# Needs Python 3.11 or later with torch for CUDA (2.11 or later) and Triton (3.6 or later), nanobind, scikit-build-core,
# cmake, ninja and a C++20 compiler, but no package registry: nothing is downloaded, and torch stays as it is.
# Exit codes: 0 all is well, 1 something failed, 3 there is no GPU that torch can use.
set -uo pipefail
cd "$(dirname "$0")/../.."

csv=${1:-$PWD/gpu-results.csv}
python=${PYTHON:-python3}
end_s=$((SECONDS + 470))
left() { echo $((end_s - SECONDS > 5 ? end_s - SECONDS : 5)); }
failed=()
step() {  # name, most seconds, command...
  local name=$1 most=$2 room
  shift 2
  room=$(left)
  echo "== $name"
  timeout $((most < room ? most : room)) "$@" || failed+=("$name (exit code $?)")
}

"$python" - <<'PY' || exit 3
try:
    import torch
except ImportError as error:
    raise SystemExit(print(f"There is no torch here ({error}), so no GPU can be used.") or 3)
if not torch.cuda.is_available():
    raise SystemExit(print(f"torch {torch.__version__} sees no GPU here: nothing was checked.") or 3)
print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, CUDA {torch.version.cuda}")
from importlib.util import find_spec

wanted = "numpy triton nanobind scikit_build_core pytest typer textual jinja2 tokenizers safetensors psutil platformdirs"
wanted += " huggingface_hub pynvml transformers"  # the last one for the networks' tests alone
if missing := [name for name in wanted.split() if find_spec(name) is None]:
    print(f"Not installed, so steps that need them will fail: {', '.join(missing)}")
PY

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
step "install" 180 "$python" -m pip install -q --no-deps --no-build-isolation --target "$work/site" .
export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH} PYTHONSAFEPATH=1
step "kernels, devices and pipelines on the GPU" 200 \
  "$python" -m pytest -q -m gpu -p no:cacheprovider --continue-on-collection-errors tests/devices tests/kernels/gpu
step "native AVX-512" 60 "$python" -m pytest -q -p no:cacheprovider tests/kernels/test_ops_cpu.py -k "avx512 or amx"
step "bench" 300 "$python" -m localmoe bench --suite kernels,slp,decode --device cuda --json --csv "$csv"

if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
echo "all is well after $SECONDS s; rows are in $csv"
