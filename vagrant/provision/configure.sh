#!/bin/sh
# configure.sh: sets a lab machine up once its packages are there. Runs in the image's root while it
# is built, and on a Vagrant box. Running it again changes nothing.
set -eu
here=$(dirname "$0")

# ZFS and the target are loaded only where there is a pool (pool.sh): a consumer must work without.
printf '%s\n' nvme-fabrics nvme-tcp xfs > /etc/modules-load.d/zvolt.conf

# Tests ask the kernel log; it must not lose their lines, and a hung task must show.
printf '%s\n' 'kernel.printk_ratelimit = 0' 'kernel.hung_task_timeout_secs = 60' > /etc/sysctl.d/90-zvolt.conf

# Many sessions share one connection. No PAM: a session costs a fork, not a login.
mkdir -p /etc/ssh/sshd_config.d
cat > /etc/ssh/sshd_config.d/zvolt.conf <<'SSH'
MaxSessions 200
MaxStartups 200
UseDNS no
PermitRootLogin prohibit-password
SSH

# Pool `tank` on the second disk, made on the first boot of a machine that is asked to have one.
install -m 755 "$here/pool.sh" /usr/local/sbin/zvolt-lab-pool
cat > /etc/systemd/system/zvolt-lab-pool.service <<'UNIT'
[Unit]
Description=Pool of the lab's storage host
ConditionPathExists=/dev/vdb
After=systemd-modules-load.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/zvolt-lab-pool tank /dev/vdb

[Install]
WantedBy=multi-user.target
UNIT
ln -sf ../zvolt-lab-pool.service /etc/systemd/system/multi-user.target.wants/zvolt-lab-pool.service

# What only costs time here, or would act on volumes behind the driver's back.
for unit in \
  apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
  fstrim.timer xfs_scrub_all.timer man-db.timer logrotate.timer \
  nvmf-autoconnect.service nvmefc-boot-connections.service \
  nfs-server.service nfs-blkmap.service nfs-client.target rpcbind.service rpcbind.socket uuidd.socket \
  rpc-statd.service rpc-statd-notify.service \
  zfs-import-cache.service zfs-import-scan.service zfs-import.target zfs-mount.service zfs-share.service \
  zfs-volume-wait.service zfs-volumes.target zfs-load-module.service zfs-zed.service zfs.target
do
  ln -sf /dev/null "/etc/systemd/system/$unit"
done

# Debian makes one host pair for all copies of an image; the driver has its own.
rm -f /etc/nvme/hostnqn /etc/nvme/hostid
