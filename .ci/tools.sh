#!/bin/sh
# Tools that no package of ours brings, built into .tools/bin. Source this file and call a function.

VERSITYGW_VERSION=${VERSITYGW_VERSION:-v1.8.0}

# tool_versitygw: the S3 server of the tests, from its Go module (about a minute on two cores, once).
tool_versitygw() {
  [ -x .tools/bin/versitygw ] && return 0
  command -v go >/dev/null || { echo "versitygw needs Go 1.25 or newer to build; tests with an S3 server are skipped without it" >&2; return 1; }
  mkdir -p .tools/bin
  GOBIN=$PWD/.tools/bin CGO_ENABLED=0 nice go install -trimpath -ldflags '-s -w' \
    "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW_VERSION"
}
