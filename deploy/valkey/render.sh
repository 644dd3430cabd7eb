#!/bin/sh
# The ACL file that Valkey reads, made from users.acl: render.sh users.acl > users
# Each @name@ becomes the SHA-256 of VALKEY_<NAME>_PASSWORD, so a password may hold any character.
set -eu

digest() {
  printf %s "$1" | sha256sum | cut -d ' ' -f 1
}

sed -e '/^#/d' -e '/^$/d' -e ':join' -e '/\\$/{N;s/ *\\\n */ /;b join' -e '}' \
    -e "s/@gateway@/$(digest "$VALKEY_GATEWAY_PASSWORD")/" \
    -e "s/@relay@/$(digest "$VALKEY_RELAY_PASSWORD")/" \
    -e "s/@reaper@/$(digest "$VALKEY_REAPER_PASSWORD")/" \
    -e "s/@operator@/$(digest "$VALKEY_OPERATOR_PASSWORD")/" \
    "$1"
