# Run by machine.py as root, in namespaces of its own. Makes a machine on which pgsluice is installed as the documents say, in
# /opt/pgsluice, whatever the checkout's place; what is written under /etc, /home, /opt, /run, /tmp and /var goes with the namespace.
# Arguments: the directory that the test sees too (here /run/machine), Python's base prefix, its packages, the checkout.
set -eu
directory=$1 base_prefix=$2 packages=$3 checkout=$4
shift 4

mount --make-rprivate /
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys

mount -t tmpfs -o mode=755 tmpfs /opt
mkdir /opt/python /opt/packages /opt/checkout
mount --bind "$base_prefix" /opt/python
mount --bind "$packages" /opt/packages
mount --bind "$checkout" /opt/checkout

mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir -p /mnt/machine /mnt/etc/upper /mnt/etc/work /mnt/var/upper /mnt/var/work
mount --bind "$directory" /mnt/machine
mount -t overlay -o lowerdir=/etc,upperdir=/mnt/etc/upper,workdir=/mnt/etc/work overlay /etc
mount -t overlay -o lowerdir=/var,upperdir=/mnt/var/upper,workdir=/mnt/var/work overlay /var
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/machine
mount --bind /mnt/machine /run/machine
mount -t tmpfs -o mode=755 tmpfs /home
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm

# A Python may look for its library where the base prefix was, in somebody's home.
echo /opt/python/lib > /etc/ld.so.conf.d/pgsluice-test.conf
ldconfig
/opt/python/bin/python3 -m venv --without-pip /opt/pgsluice
printf '%s\n' /opt/checkout "import site; site.addsitedir('/opt/packages')" \
  > "$(echo /opt/pgsluice/lib/python3.*/site-packages)/installed.pth"
printf '%s\n' '#!/opt/pgsluice/bin/python' 'import sys' 'from pgsluice.console.program import main' 'sys.exit(main())' \
  > /opt/pgsluice/bin/pgsluice
chmod 755 /opt/pgsluice/bin/pgsluice

exec "$@"
