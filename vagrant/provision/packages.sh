#!/bin/sh
# packages.sh: installs what a lab machine needs on a running Debian 13 (for Vagrant).
# The lab's own image gets the same list from mmdebstrap.
set -eu
here=$(dirname "$0")
# ZFS is in contrib, which a stock box does not read.
for sources in /etc/apt/sources.list.d/*.sources; do
  [ -e "$sources" ] && sed -i '/^Components:/{/contrib/!s/$/ contrib/}' "$sources"
done
[ -e /etc/apt/sources.list ] && sed -i '/^deb /{/contrib/!s/ main/ main contrib/}' /etc/apt/sources.list
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# A box keeps the kernel that it booted, so ZFS is built for that one.
{ grep -v -e '^#' -e '-cloud-' "$here/packages.txt"; echo "linux-headers-$(uname -r)"; } |
  xargs apt-get install -y -q --no-install-recommends
