# Run by machine.sh: systemd becomes process 1 of the machine, in control groups of its own, and knows no unit of the real one.
set -eu
mount -t tmpfs -o mode=755 tmpfs /etc/systemd
mkdir -p /etc/systemd/system /etc/pgsluice /etc/sysusers.d
# A JVM would look for itself in what is mounted below.
umount --recursive /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# As process 1 of a real machine does it, so that what systemd mounts for one unit gets there.
mount --make-rshared /
cd /etc/systemd/system
for target in sysinit basic network-online multi-user shutdown; do
  printf '[Unit]\nDefaultDependencies=no\n' > "$target.target"
done
exec env -i container=pgsluice-test PATH="$PATH" SYSTEMD_UNIT_PATH=/etc/systemd/system \
  /lib/systemd/systemd --system --unit=multi-user.target --log-target=console --show-status=no
