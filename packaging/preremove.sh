#!/bin/sh
# Stops the hub before its program is removed. An upgrade leaves it running: the new
# version restarts it. dpkg's argument is "remove", rpm's the number of versions left.
set -e

case "$1" in
  remove | 0)
    if [ -d /run/systemd/system ]; then
      systemctl disable --now kith-hub.service
    fi
    ;;
esac
