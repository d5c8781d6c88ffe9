# shellcheck shell=bash
# Other people's tools that tests hold Parley against, for .tools/engines, which sources this file: Prometheus's promtool
# on the alert rules, kcat and the commands of Apache Kafka on the log.
#
# promtool comes out of Debian's package of Prometheus, which is unpacked in the cache and not installed; kcat is
# installed from Debian, for which one must be root. What cannot be had is left out, with a word.

apt_fresh=false
apt_update() {
  if $apt_fresh || ((EUID != 0)); then return 0; fi
  apt-get -qq update >&2 && apt_fresh=true
}

fetch_promtool() {
  if promtool="$(command -v promtool)"; then return 0; fi
  local want="$cache/promtool"
  promtool="$want/usr/bin/promtool"
  [[ -x "$promtool" ]] && return 0
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || { say "no promtool: it is not installed, and there is no apt-get"; promtool=""; return 0; }
  say "fetching promtool"
  rm -rf "$want.new"
  mkdir -p "$want.new/deb"
  if apt_update && (cd "$want.new/deb" && apt-get -qq download prometheus >&2) && dpkg -x "$want.new"/deb/prometheus_*.deb "$want.new"; then
    # The server is as large again, and is not needed.
    rm -rf "$want" "$want.new/deb" "$want.new/usr/bin/prometheus" "$want.new/usr/share"
    mv "$want.new" "$want"
  else
    say "no promtool: Debian's package prometheus cannot be fetched"
    promtool=""
  fi
}

fetch_kcat() {
  if kcat="$(command -v kcat)"; then return 0; fi
  if command -v apt-get >/dev/null && ((EUID == 0)); then
    say "installing kcat"
    apt_update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends kcat >&2 || true
  fi
  kcat="$(command -v kcat)" || { say "no kcat: run apt-get install kcat"; kcat=""; }
}

print_tools() {
  fetch kafka
  fetch promtool
  fetch kcat
  echo "export PARLEY_TEST_KAFKA_LIBS=$libs"
  if [[ -n "$promtool" ]]; then echo "export PARLEY_TEST_PROMTOOL=$promtool"; fi
  if [[ -n "$kcat" ]]; then echo "export PARLEY_TEST_KCAT=$kcat"; fi
}
