# To be sourced. torchair needs no environment: it runs with and without the toolkit.
if [ -z "${TARGET_PYTHON_PATH:-}${ASCEND_SDK_PATH:-}${NO_ASCEND_SDK:-}" ]; then
  echo "tools/env.sh: nothing needs to be set"
fi
