#!/bin/sh
# pool.sh POOL DISK: makes a storage host: loads ZFS and the NVMe target, imports the pool, or makes it
# on a disk that has nothing on it.
set -eu
pool=$1 disk=$2
modprobe -a nvmet nvmet-tcp nvme-loop zfs
# systemd mounts it at boot only where the module was there by then.
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
[ -c /dev/zfs ] || udevadm settle
zpool list "$pool" >/dev/null 2>&1 && exit 0
# Forced: after a hard kill the pool was not exported.
zpool import -f -d "$disk" "$pool" 2>/dev/null && exit 0
if [ -n "$(dd if="$disk" bs=1M count=4 status=none | tr -d '\0' | head -c 1)" ]; then
  echo "$disk holds something that is not pool $pool; not touching it" >&2
  exit 1
fi
exec zpool create -O mountpoint=none -O compression=off "$pool" "$disk"
