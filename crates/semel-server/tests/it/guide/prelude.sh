# What the commands of a page run under: servers go to the background until the page ends, cargo starts what is built already.
# Set by the test: SEMEL, EXAMPLES, ROOT, ADMIN_PORT, GATEWAY_PORT, REDIS_PORT.
set -euo pipefail
run=$(mktemp -d -p .)

fail() {
  echo "FAILED: $*" >&2
  cat "$run"/*.err >&2 2>/dev/null || true
  exit 1
}

# in_background NAME COMMAND…: starts it and waits for its first line.
in_background() {
  local name=$1
  shift
  stop "$name"
  "$@" >"$run/$name.out" 2>"$run/$name.err" </dev/null &
  echo $! >"$run/$name.pid"
  until [ -s "$run/$name.out" ]; do
    kill -0 "$(cat "$run/$name.pid")" 2>/dev/null || fail "$name ended: $*"
    sleep 0.05
  done
}

# stop NAME: what Ctrl-C does in its terminal.
stop() {
  local pid
  [ -e "$run/$1.pid" ] || return 0
  pid=$(cat "$run/$1.pid")
  rm "$run/$1.pid" "$run/$1.out"
  kill "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
}

stop_all() {
  local file
  for file in "$run"/*.pid; do [ ! -e "$file" ] || stop "$(basename "$file" .pid)"; done
}
trap stop_all EXIT

semel() {
  case ${1-} in
    serve) serve "$@" ;;
    demo) "$SEMEL" "$@" --for 1s ;;
    *) "$SEMEL" "$@" ;;
  esac
}

serve() {
  local flags=(--admin "127.0.0.1:$ADMIN_PORT")
  case " $* " in *" --upstream "*) flags+=(--listen "127.0.0.1:$GATEWAY_PORT") ;; esac
  in_background server "$SEMEL" "$@" "${flags[@]}"
}

cargo() {
  local name='' package=''
  case "$1 $2" in
    "run --release") shift 3 && semel "$@" && return ;;
    "build --release") return ;;
    "install --locked") [ -d "$ROOT/${4:-crates/$3}" ] || fail "$* names no crate" && return ;;
  esac
  local kind=$1
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
      -p) package=$2 ;;
      --example | --bench) name=$2 ;;
    esac
    shift
  done
  [ $# -eq 0 ] || shift
  [ -e "$ROOT/crates/$package/${kind/run/example}s/$name.rs" ] || [ -d "$ROOT/crates/$package/${kind/run/example}s/$name" ] ||
    [ -e "$ROOT/crates/$package/benches/$name.rs" ] || fail "$package has no $name"
  [ "$kind" = run ] || return 0
  [ -x "$EXAMPLES/$name" ] || (cd "$ROOT" && command cargo build --quiet --workspace --all-features --locked --example "$name")
  if [ $# -gt 0 ]; then in_background "$1" "$EXAMPLES/$name" "$@"; else "$EXAMPLES/$name"; fi
}

python3() {
  case ${1-} in
    *.py) in_background "$1" env python3 "$@" ;;
    *) command python3 "$@" ;;
  esac
}

redis-cli() { command redis-cli -p "$REDIS_PORT" "$@"; }

# api ADDRESS: an API that makes another thing with every POST.
api() {
  in_background "$1" env python3 "$ROOT/crates/semel-server/tests/it/guide/api.py" "$1"
}

# expect STATUS CURL…: shows the answer, which must have this status.
expect() {
  local status=$1 answer
  shift
  answer=$("$@" 2>/dev/null) || fail "$*"
  echo "$answer"
  grep -q "^HTTP/[0-9.]* $status" <<<"$answer" || fail "$status was expected of: $*"
}

# shows PATTERN COMMAND…: the output of the command must have a line like this.
shows() {
  local pattern=$1 output
  shift
  output=$("$@") || fail "$*"
  grep -Eq -- "$pattern" <<<"$output" || fail "$* does not show $pattern: $output"
}

# The scripts of the repository, by name and argument alone: they would start what is running here.
mkdir scripts
for script in test contract clients coverage; do printf '#!/bin/sh\n' >"scripts/$script"; done
printf '#!/bin/sh\n[ $# -eq 0 ] || "%s/scripts/prove" | grep -q "^$1 "\n' "$ROOT" >scripts/prove
chmod +x scripts/*
