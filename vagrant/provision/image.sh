#!/bin/sh
# image.sh AUTHORIZED_KEY: what the lab's own image needs beside configure.sh. It boots by a kernel
# and an initrd given to QEMU, so it can do without a boot loader and most of an initrd.
set -eu
here=$(dirname "$0")
key=$1

# Drivers of QEMU's own disk and card are all that an initrd has to bring.
printf '%s\n' virtio_pci virtio_blk virtio_net ext4 > /etc/initramfs-tools/modules
sed -i 's/^MODULES=.*/MODULES=list/; s/^COMPRESS=.*/COMPRESS=gzip/' /etc/initramfs-tools/initramfs.conf
rm -f /usr/share/initramfs-tools/hooks/zfs /usr/share/initramfs-tools/scripts/zfs
# Without udev: the kernel itself makes /dev/vda, and coldplugging twice costs seconds when emulated.
rm -f /usr/share/initramfs-tools/hooks/udev /usr/share/initramfs-tools/scripts/*/udev
# Unpacking a module is dear when emulated; room on the disk is not.
find /usr/lib/modules -name '*.ko.xz' -exec unxz {} +
depmod -a "$(basename /usr/lib/modules/*)"
update-initramfs -u

mkdir -p -m 700 /root/.ssh
install -m 600 "$key" /root/.ssh/authorized_keys
rm -f /etc/ssh/ssh_host_*
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
printf '%s\n' 'UsePAM no' 'HostKey /etc/ssh/ssh_host_ed25519_key' > /etc/ssh/sshd_config.d/zvolt-lab.conf

# An empty machine-id would make every boot a first boot; QEMU's command line gives each its own.
echo 7a766f6c746c61627a766f6c746c6162 > /etc/machine-id
zgenhostid -f 7a766f6c
: > /etc/fstab
printf '%s\n' '127.0.0.1 localhost' '10.77.0.10 storage0' '10.77.0.20 node0' '10.77.0.21 node1' > /etc/hosts
: > /etc/motd

install -m 755 "$here/network.sh" /usr/local/sbin/zvolt-lab-network
cat > /etc/systemd/system/zvolt-lab-network.service <<'UNIT'
[Unit]
Description=Addresses of the lab's private network
DefaultDependencies=no
Before=network.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/zvolt-lab-network
UNIT
cat > /etc/systemd/system/zvolt-lab-ready.service <<'UNIT'
[Unit]
Description=Tell the lab that this machine can be used
Requires=ssh.service zvolt-lab-network.service
After=ssh.service zvolt-lab-network.service zvolt-lab-pool.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'printf "\\nzvolt-lab-ready\\n" > /dev/ttyS0'
UNIT
mkdir -p /etc/systemd/system/ssh.service.d
printf '%s\n' '[Service]' 'ExecStartPre=' > /etc/systemd/system/ssh.service.d/zvolt-lab.conf
wants=/etc/systemd/system/multi-user.target.wants
ln -sf ../zvolt-lab-network.service $wants/zvolt-lab-network.service
ln -sf ../zvolt-lab-ready.service $wants/zvolt-lab-ready.service

for unit in \
  getty.target getty@tty1.service getty-static.service serial-getty@ttyS0.service systemd-logind.service \
  systemd-user-sessions.service sshd-keygen.service ssh.socket systemd-timesyncd.service \
  systemd-networkd.service systemd-resolved.service networking.service \
  ldconfig.service systemd-hwdb-update.service systemd-journal-catalog-update.service systemd-update-done.service \
  systemd-firstboot.service systemd-machine-id-commit.service systemd-binfmt.service \
  proc-sys-fs-binfmt_misc.automount systemd-pstore.service systemd-pcrmachine.service \
  systemd-pcrphase.service systemd-pcrphase-sysinit.service systemd-pcrlock.socket systemd-pcrextend.socket \
  systemd-tpm2-setup.service systemd-tpm2-setup-early.service systemd-sysext.socket systemd-creds.socket \
  systemd-hostnamed.socket systemd-hibernate-clear.service systemd-update-utmp.service \
  systemd-ask-password-console.path systemd-ask-password-wall.path \
  systemd-random-seed.service systemd-journal-flush.service systemd-sysusers.service systemd-remount-fs.service \
  systemd-tmpfiles-setup-dev-early.service systemd-tmpfiles-clean.timer systemd-udev-load-credentials.service \
  systemd-udev-trigger.service tmp.mount sys-kernel-debug.mount sys-kernel-tracing.mount modprobe@configfs.service \
  dev-hugepages.mount dev-mqueue.mount sys-fs-fuse-connections.mount \
  modprobe@dm_mod.service modprobe@drm.service modprobe@fuse.service modprobe@loop.service modprobe@efi_pstore.service
do
  ln -sf /dev/null "/etc/systemd/system/$unit"
done
# Nothing here is generated: no fstab, no crypttab, no gettys.
mkdir -p /etc/systemd/system-generators
for generator in /usr/lib/systemd/system-generators/*; do
  ln -sf /dev/null "/etc/systemd/system-generators/${generator##*/}"
done
ln -sf /usr/lib/systemd/system/multi-user.target /etc/systemd/system/default.target

# Nothing that survives a boot needs a log on the disk.
mkdir -p /etc/systemd/journald.conf.d
printf '%s\n' '[Journal]' 'Storage=volatile' 'RateLimitIntervalSec=0' > /etc/systemd/journald.conf.d/zvolt-lab.conf

# The modules stay; what built them goes.
rm -rf /usr/src/* /usr/lib/gcc /usr/libexec/gcc /var/lib/dkms/zfs/*/build /var/cache/apt/archives/* /var/lib/apt/lists/*
