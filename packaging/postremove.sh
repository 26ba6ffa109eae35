#!/bin/sh
# After `apt purge` removes the hub's data, its configuration and its user. Every other
# removal keeps them. rpm has no purge.
set -e

if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
if [ "$1" = purge ]; then
  rm -rf /var/lib/kith /etc/kith
  if getent passwd kith >/dev/null; then
    userdel kith
  fi
  if getent group kith >/dev/null; then
    groupdel kith
  fi
fi
