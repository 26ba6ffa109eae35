#!/bin/sh
# Installs kith for this user, from a release:
#
#   curl -fsSL https://github.com/kith/kith/releases/latest/download/install.sh | sh
#
# It needs no root, checks the download against the release's checksums, and says what it
# does. It writes below PREFIX only: bin/kith, the man pages and the completions.
#
#   KITH_VERSION=1.2.3       that release; default the newest
#   KITH_PREFIX=/usr/local   default ~/.local
#   KITH_RELEASES=URL        where the releases are
#
# docs/install.md says how to upgrade and to uninstall.
set -eu

releases=${KITH_RELEASES:-https://github.com/kith/kith/releases}
prefix=${KITH_PREFIX:-${HOME:?cannot find your home folder: set HOME or KITH_PREFIX}/.local}

fail() {
  echo "install: $*" >&2
  exit 1
}

# download URL FILE [-s]: -s shows no progress. From https it follows a redirect to https
# only: the checksums have to come over TLS.
download() {
  status=0
  if command -v curl >/dev/null; then
    if [ "${3:-}" = -s ]; then set -- "$1" "$2" -sS; else set -- "$1" "$2" --progress-bar; fi
    case "$1" in
      https:*) curl -fL --proto =https --proto-redir =https "$3" -o "$2" "$1" || status=$? ;;
      *) curl -fL "$3" -o "$2" "$1" || status=$? ;;
    esac
    [ "$status" != 23 ] || full "$2"
    [ "$status" != 1 ] || fail "cannot download $1: it points to an address without TLS; check KITH_RELEASES"
  elif command -v wget >/dev/null; then
    wget -S -O "$2" "$1" 2>"$2.log" || status=$?
    [ "$status" != 3 ] || full "$2"
    case "$1" in
      https:*) ! grep -qi '^ *location: *http:' "$2.log" || fail "cannot download $1: it points to an address without TLS; check KITH_RELEASES" ;;
    esac
  else
    fail "there is neither curl nor wget; install one of them"
  fi
  [ "$status" = 0 ] || fail "cannot download $1; check the network, KITH_VERSION and KITH_RELEASES"
}

# full FILE ends because FILE cannot be written.
full() {
  fail "cannot write $1: the disk is full or read-only; free some space, or set TMPDIR to a folder on another disk"
}

# runs FOLDER: programs may run in it.
runs() {
  printf '#!/bin/sh\n' >"$1/.kith-runs" && chmod 700 "$1/.kith-runs" && "$1/.kith-runs" 2>/dev/null || {
    rm -f "$1/.kith-runs"
    return 1
  }
  rm -f "$1/.kith-runs"
}

sum() {
  if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

# main is the last line's, so that an incomplete script does nothing.
main() {
  system=$(uname -s)
  case "$system" in
    Linux) system=linux ;;
    Darwin) system=darwin ;;
    *) fail "there is no release for $system that this script installs; for Windows see docs/install.md" ;;
  esac
  processor=$(uname -m)
  case "$processor" in
    x86_64 | amd64) processor=amd64 ;;
    aarch64 | arm64) processor=arm64 ;;
    *) fail "there is no release for the processor $processor; build kith from its source" ;;
  esac

  # The built-in engine needs glibc 2.34. Elsewhere on Linux the static binary runs, with an
  # engine of this machine's own.
  name=kith
  if [ "$system" = linux ]; then
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d ' ' -f 2)
    major=${glibc%%.*}
    minor=${glibc#*.}
    if [ -z "$glibc" ] || [ "$major" -lt 2 ] || { [ "$major" -eq 2 ] && [ "${minor%%.*}" -lt 34 ]; }; then
      name=kith-slim
    fi
  fi

  work=$(mktemp -d) || full "in ${TMPDIR:-/tmp}"
  trap 'rm -rf "$work"' EXIT
  trap 'exit 1' HUP INT TERM

  if [ -n "${KITH_VERSION:-}" ]; then
    from=$releases/download/v${KITH_VERSION#v}
  else
    from=$releases/latest/download
  fi
  download "$from/SHA256SUMS" "$work/SHA256SUMS" -s
  line=$(grep -E "^[0-9a-f]{64}  ${name}_[^/]*_${system}_${processor}\.tar\.gz\$" "$work/SHA256SUMS" || true)
  [ -n "$line" ] || fail "$from has no $name for $system on $processor"
  want=${line%% *}
  archive=${line##* }

  echo "kith: downloading $archive from $from"
  [ "$name" = kith ] || echo "kith: this one has no engine of its own, which needs glibc 2.34; it finds Ollama, llama.cpp's server and others"
  download "$from/$archive" "$work/$archive"
  got=$(sum "$work/$archive")
  [ "$got" = "$want" ] || fail "$archive is not what the release's checksums say (sha256 $got, not $want); download it again, and do not use this copy"
  echo "kith: its checksum is right"

  tar -xzf "$work/$archive" -C "$work" || full "$work"
  folder=$work/${archive%.tar.gz}
  runs "$work" || fail "programs may not run in ${TMPDIR:-/tmp}, which is mounted noexec; set TMPDIR to a folder where they may, as TMPDIR=\$HOME"
  "$folder/kith" version >/dev/null || fail "$archive does not run on this machine"

  echo "kith: installing below $prefix"
  # put FILE TO MODE replaces a file in one step, also that of a program that runs.
  put() {
    mkdir -p "$(dirname "$2")" && cp "$1" "$2.new" && chmod "$3" "$2.new" && mv -f "$2.new" "$2" ||
      fail "cannot write $2; free some space, or choose another folder with KITH_PREFIX"
  }
  mkdir -p "$prefix/bin" && runs "$prefix/bin" ||
    fail "programs may not be written to $prefix/bin or not run there, as on a disk mounted noexec; choose another folder with KITH_PREFIX"
  put "$folder/kith" "$prefix/bin/kith" 755
  for page in "$folder"/man/man1/*.1; do
    put "$page" "$prefix/share/man/man1/${page##*/}" 644
  done
  put "$folder/completions/kith.bash" "$prefix/share/bash-completion/completions/kith" 644
  put "$folder/completions/_kith" "$prefix/share/zsh/site-functions/_kith" 644
  put "$folder/completions/kith.fish" "$prefix/share/fish/vendor_completions.d/kith.fish" 644

  echo "kith: installed $("$prefix/bin/kith" version)"
  case ":$PATH:" in
    *":$prefix/bin:"*) ;;
    *) echo "kith: add $prefix/bin to your PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
  esac
  if [ "$system" = darwin ] && ! command -v llama-server >/dev/null; then
    echo "kith: to run models here, install llama.cpp: brew install llama.cpp"
  fi
  echo "kith: try it with \`kith dev\`"
}

main
