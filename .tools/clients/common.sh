# Sourced by the scripts that drive the server with foreign programs and browsers, in the root of the repository.

# take_server reads the option --server BINARY, which names a built server, and leaves other arguments in the array rest.
take_server() {
  server="" rest=()
  while (($#)); do
    case "$1" in
    --server) server="$(realpath "$2")" && shift ;;
    *) rest+=("$1") ;;
    esac
    shift
  done
}

# only_server is take_server for a script that has no other arguments.
only_server() {
  take_server "$@"
  if ((${#rest[@]} > 0)); then echo "$0: unknown ${rest[0]}" >&2 && exit 2; fi
}

# need_server builds the server in a folder if --server has named none; its path is then in server.
need_server() {
  if [[ -n "$server" ]]; then return; fi
  go build -buildvcs=false -o "$1/parley" ./server
  server="$1/parley"
}

# chromium prints the path of Chromium: $CHROMIUM, or one in PATH, which it installs as root on Debian.
chromium() {
  local path
  if [[ -n "${CHROMIUM:-}" ]]; then echo "$CHROMIUM" && return; fi
  chromium_in_path && return
  if [[ "$(id -u)" == 0 ]] && type -P apt-get >/dev/null; then
    (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium) >&2
    chromium_in_path && return
  fi
  echo "$0: no Chromium; name one in CHROMIUM, or on Debian: apt-get install chromium" >&2
  return 1
}
chromium_in_path() { type -P chromium || type -P chromium-browser || type -P google-chrome; }

# Compilers that run for a minute: the second compiler of the JVM costs more than it gains.
jvm=(-Xmx1g -XX:TieredStopAtLevel=1 -XX:+UseSerialGC)

# made runs a function with an empty folder, unless it has succeeded before with the same inputs; the folder is then in
# made. The inputs are the pinned tools, the versions of Java and Node.js, the scripts, and the files that are named. A
# folder of other inputs stays, because another clone may use it, until nothing has used it for a week. The function runs
# in a shell of its own, where its first error ends it: below a condition or a list of commands, bash ignores set -e, and
# what failed would be kept. It sees the functions and the variables cache, stubs, libraries and jvm of the script.
made() { # CACHE FUNCTION FILE...
  local cache="$1" name="$2" new
  shift 2
  made="$cache/made/$name-$({
    cat "$cache/stamp"
    { java -version; node --version; } 2>&1
    cksum "$@" .tools/clients/common.sh .tools/clients/run .tools/clients/stubs
  } | cksum | tr ' ' -)"
  if [[ ! -d "$made" ]]; then
    mkdir -p "$cache/made"
    find "$cache/made" -mindepth 1 -maxdepth 1 -mtime +7 -exec rm -rf {} +
    new="$(mktemp -d "$cache/made/new-XXXXXX")"
    if ! bash -euo pipefail -c "$(declare -p cache stubs libraries jvm 2>/dev/null; declare -f)"$'\n'"$name "'"$1"' made "$new"; then
      rm -rf "$new"
      return 1
    fi
    # Another run may have been faster; its folder is the same.
    if [[ -d "$made" ]]; then rm -rf "$new"; else mv "$new" "$made"; fi
  fi
  touch "$made"
}
