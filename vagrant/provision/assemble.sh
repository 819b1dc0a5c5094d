#!/bin/sh
# assemble.sh TREE_TAR OUT KEY: from a Debian tree to a disk image, its kernel and its initrd, in OUT.
# Runs as root in a mount and a process namespace of its own, so that nothing of it stays mounted.
set -eu
tar=$1 out=$2 key=$3
here=$(dirname "$0")
root=$out/root
mkdir "$root"
tar --extract --xattrs --xattrs-include="*" --file "$tar" --directory "$root" --numeric-owner
mkdir "$root/provision"
cp "$here"/*.sh "$here"/packages.txt "$root/provision"
install -m 644 "$key" "$root/provision/authorized_key"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
for step in 'configure.sh' 'image.sh /provision/authorized_key'; do
  # The words of a step are meant to be split.
  # shellcheck disable=SC2086
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 chroot "$root" /bin/sh /provision/$step
done
umount "$root/dev" "$root/proc"
rm -rf "$root/provision"
cp "$root"/boot/vmlinuz-* "$out/kernel"
cp "$root"/boot/initrd.img-* "$out/initrd"
sed 's/^/zvolt-lab /' "$root/etc/ssh/ssh_host_ed25519_key.pub" > "$out/known_hosts"
rm -rf "$root/boot"/*
truncate -s 6G "$out/root.img"
mke2fs -q -t ext4 -E lazy_itable_init=1,nodiscard -d "$root" -F "$out/root.img"
rm -rf "$root"
