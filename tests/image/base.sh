#!/bin/sh
# A base for the image where no registry answers: Debian 12 with its Python, from Debian's archive, as the archive BASE.tar.
# It trusts whom this machine trusts, or pip could not pass a proxy that looks into TLS. As root: base.sh BASE.tar
set -eu
mmdebstrap --variant=minbase --include=python3,python3-venv,ca-certificates,adduser \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
  --customize-hook='mkdir -p "$1/usr/share/man/man1"' \
  --customize-hook='ln -s python3 "$1/usr/bin/python"' \
  --customize-hook='cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"' \
  --customize-hook='printf "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n" > "$1/etc/pip.conf"' \
  bookworm "$1" \
  'deb http://deb.debian.org/debian bookworm main' \
  'deb http://deb.debian.org/debian bookworm-updates main' \
  'deb http://deb.debian.org/debian-security bookworm-security main'
