#!/usr/bin/env bash
# Build the wheel, install it into an empty virtual environment, and run the README's quick start in an empty folder.
# It finds what tests in the source tree cannot: files that are missing in the wheel, undeclared dependencies, stale commands.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
unset PYTHONPATH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip wheel -q --no-deps --wheel-dir "$work/dist" .
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q -c constraints.txt "$work"/dist/vitral-*.whl

# Every ```sh and ```python block of the section, in order, each in a file.
mkdir "$work/steps" "$work/empty"
awk -v folder="$work/steps" '
	/^```/ && inside { file = ""; inside = 0; next }
	/^## / { section = ($0 == "## Quick start") }
	/^```/ { inside = 1; name = substr($0, 4); if (section && (name == "sh" || name == "python"))
		file = sprintf("%s/%02d.%s", folder, ++count, name); next }
	inside && file { print > file }
' README.md
compgen -G "$work/steps/*" >/dev/null || { echo "README.md has no code under '## Quick start'" >&2; exit 1; }

cd "$work/empty"
export PATH="$work/venv/bin:$PATH" XDG_CACHE_HOME="$work/cache"
python -c 'import sys, vitral; assert vitral.__file__.startswith(sys.prefix), vitral.__file__'
for step in "$work"/steps/*; do
	case $step in
	*.sh) bash -euxo pipefail "$step" ;;
	*.python) python "$step" ;;
	esac
done
echo "the wheel works: $(basename "$work"/dist/vitral-*.whl)" >&2
