#!/bin/sh
# Makes the hub's user, and restarts a hub that runs after an upgrade. A first
# installation starts nothing: the hub is configured before it serves others, and the
# daemon is each user's own.
#
# dpkg's first argument is "configure", with the version before as the second; rpm's is
# the number of installed versions.
set -e

case "$1" in
  configure | 1 | 2) ;;
  *) exit 0 ;;
esac

if command -v systemd-sysusers >/dev/null; then
  systemd-sysusers kith.conf
elif ! getent passwd kith >/dev/null; then
  useradd --system --user-group --home-dir /var/lib/kith --no-create-home --shell /usr/sbin/nologin kith
fi
# The configuration may hold passwords: only the hub reads it, which has to own it for
# that. An operator's other choice is kept.
if [ "$(stat -c %U:%G:%a /etc/kith/hub.toml 2>/dev/null)" = root:root:600 ]; then
  chown kith:kith /etc/kith/hub.toml
fi

if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart kith-hub.service
fi
