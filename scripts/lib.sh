# shellcheck shell=bash
# Shared by the scripts beside it. Source it, do not run it.

passed=0
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# own_scratch: from here on, everything this script starts has temporary files in one folder of its own, and can be recognised by it.
own_scratch() {
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/semel-test.XXXXXX")
  chmod 711 "$scratch" # PostgreSQL runs as another user, in folders below
  export TMPDIR=$scratch
  trap 'rm -rf "$log" "$scratch"' EXIT
}

# check_leftovers: no process that a test started still runs, and no temporary file is left. Counts as one test.
check_leftovers() {
  local processes="" files=""
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    processes=$(leftover_processes)
    files=$(find "$scratch" -mindepth 1 -maxdepth 1)
    if [ -z "$processes$files" ]; then
      echo "ok      no process and no file is left"
      passed=$((passed + 1))
      return
    fi
    sleep 0.5 # what was told to stop may need a moment
  done
  echo "FAILED  left after the tests:"
  printf '%s\n' "$processes" "$files" | grep . | sed 's/^/  /'
  failed=$((failed + 1))
}

# Lists the processes with the folder of this run in their environment, with the test that started each; not those that run this script.
leftover_processes() {
  local folder pid
  for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}
    grep -qzF "TMPDIR=$scratch" "$folder/environ" 2>/dev/null || grep -qF "$scratch" "$folder/cmdline" 2>/dev/null || continue
    case $(readlink "$folder/exe" 2>/dev/null) in */bash | */grep | "") continue ;; esac
    printf '%s %s (%s)\n' "$pid" "$(tr '\0' ' ' <"$folder/cmdline" | cut -c 1-120)" \
      "$(tr '\0' '\n' <"$folder/environ" 2>/dev/null | sed -n 's/^NEXTEST_TEST_NAME=//p')"
  done
}

step() {
  printf '\n== %s ==\n' "$1"
}

# need_commands COMMAND:PACKAGE…: installs what is missing with the system's package manager, or says what to install.
need_commands() {
  local missing=() pair
  for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing+=("${pair#*:}")
  done
  install_packages "${missing[@]}"
}

# need_servers: the servers that tests start themselves. PostgreSQL is looked for where Debian keeps it, off the PATH.
need_servers() {
  local missing=()
  command -v redis-server >/dev/null 2>&1 || missing+=(redis-server)
  has_postgres || missing+=(postgresql)
  command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ] || missing+=(nginx) # the yardstick of the proxy
  command -v pgbouncer >/dev/null 2>&1 || [ -x /usr/sbin/pgbouncer ] || missing+=(pgbouncer)
  install_packages "${missing[@]}"
  # A package starts a service of its own, which nobody asked for. One that was here before is left alone.
  if [ ${#missing[@]} -gt 0 ] && [ -d /run/systemd/system ]; then
    systemctl disable --now "${missing[@]}"
  fi
}

install_packages() {
  [ $# -gt 0 ] || return 0
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    step "installing $*"
    apt-get -o DPkg::Lock::Timeout=300 update -qq
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@"
  else
    echo "Missing: $*. Install with:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y $*" >&2
    echo "then run this again." >&2
    exit 1
  fi
}

# fetch COMMAND…: installs something from a package registry, or says what is missing.
fetch() {
  "$@" >"$log" 2>&1 && return
  cat "$log" >&2
  echo "This could not be installed: $*" >&2
  echo "It comes from the package registries of Python or npm: this needs the network, or mirrors set up for pip and npm." >&2
  exit 1
}

has_postgres() {
  local initdb
  for initdb in "$(command -v initdb || true)" /usr/lib/postgresql/*/bin/initdb; do
    [ -x "$initdb" ] && [ -x "$(dirname "$(readlink -f "$initdb")")/postgres" ] && return
  done
  return 1
}

# run_tests SELECTION…: nextest where it is installed, cargo's own runner elsewhere. Counts what passed.
run_tests() {
  local status=0
  if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run "$@" --profile bounded --all-features --locked --no-fail-fast --status-level fail \
      --final-status-level fail 2>&1 | tee "$log" || status=$?
    add_counts "$(sed -n 's/.*Summary.*: \([0-9]*\) passed.*/\1/p' "$log" | tail -n 1)" \
      "$(sed -n 's/.*Summary.*[ ,]\([0-9]*\) failed.*/\1/p' "$log" | tail -n 1)"
  else
    cargo test "$@" --all-features --locked --no-fail-fast --lib --bins --tests 2>&1 | tee "$log" || status=$?
    count_cargo_test
  fi
  [ "$status" -eq 0 ] || failed_line
}

run_doc_tests() {
  local status=0
  cargo test --workspace --doc --all-features --locked 2>&1 | tee "$log" || status=$?
  count_cargo_test
  [ "$status" -eq 0 ] || failed_line
}

# Every example must run and exit well; each counts as one test.
run_examples() {
  local example name
  cargo build --workspace --examples --all-features --locked --quiet
  # Started as they were built: `cargo run -p` would build again with the features of one crate, within the time limit.
  for example in crates/*/examples/*.rs; do
    # An example that needs a server is run by the tests, which have one.
    if grep -q '^//! Needs' "$example"; then continue; fi
    name=$(basename "$example" .rs)
    if timeout 60 "${CARGO_TARGET_DIR:-target}/debug/examples/$name" >"$log" 2>&1; then
      echo "ok      example $name"
      passed=$((passed + 1))
    else
      echo "FAILED  example $name (exit code $?):"
      cat "$log"
      failed=$((failed + 1))
    fi
  done
}

# The first example of the library's README is a crate of its own that compiles and runs, and an effect whose error is not
# classified does not compile, with a message that says what to call.
run_hello() {
  local readme=$PWD/crates/semel/README.md crate
  crate=$(mktemp -d)
  mkdir "$crate/src"
  cp Cargo.lock "$crate/"
  {
    printf '[package]\nname = "hello"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n'
    first_block toml "$readme" | sed "s|^semel = .*|semel = { path = \"$PWD/crates/semel\" }|"
  } >"$crate/Cargo.toml"
  first_block rust "$readme" >"$crate/src/main.rs"
  expect "the first program has at most 7 lines" test "$(wc -l <"$crate/src/main.rs")" -le 7
  expect "the first program runs" hello_in "$crate" run
  sed -i 's/Ok("charged".to_owned())/std::fs::read_to_string("no such file")/' "$crate/src/main.rs"
  hello_in "$crate" check || true
  expect "the compiler names failed and unknown" grep -qF 'call `.failed()` (nothing happened) or `.unknown()`' "$log"
  rm -rf "$crate"
}

hello_in() {
  (cd "$1" && CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$OLDPWD/target} cargo "$2" --quiet) >"$log" 2>&1
}

first_block() { awk -v start="\`\`\`$1" '$0 == start {on = 1; next} on && /^```/ {exit} on' "$2"; }

# Counts one check: a sentence, then the command that must succeed.
expect() {
  local what=$1
  shift
  if "$@"; then
    echo "ok      $what"
    passed=$((passed + 1))
  else
    echo "FAILED  $what:"
    cat "$log"
    failed=$((failed + 1))
  fi
}

# logged COMMAND…: its output is shown only if it fails.
logged() { "$@" >"$log" 2>&1; }

count_cargo_test() {
  local p f
  p=$(sed -n 's/^test result: .* \([0-9]*\) passed; .*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
  f=$(sed -n 's/^test result: .* \([0-9]*\) failed; .*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
  add_counts "$p" "$f"
}

add_counts() {
  passed=$((passed + ${1:-0}))
  failed=$((failed + ${2:-0}))
}

# The last line after a command that failed. It may have failed before it ran a test: that counts as one. Exits.
failed_line() {
  [ "$failed" -gt 0 ] || failed=1
  closing_line
}

# The last line that anybody reads. Exits.
closing_line() {
  [ "$passed" -gt 0 ] || failed=$((failed + 1))
  printf '\n%s passed, %s failed\n' "$passed" "$failed"
  [ "$failed" -eq 0 ]
  exit
}
