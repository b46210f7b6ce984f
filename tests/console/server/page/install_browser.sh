#!/bin/sh
# The browser of `make test-page`, into build/browser: Debian's chromium and those of its libraries that the machine has not, fetched
# by apt-get and unpacked, so without root and without a trace elsewhere. A chromium or Chrome that is installed is used as it is.
# CHROMIUM names another one. Ends with 1, and says why, where no package can be had.
set -eu
folder=$1
program=$folder/chromium
mkdir -p "$folder"
[ -x "$program" ] && exit 0

for candidate in "${CHROMIUM:-}" chromium google-chrome-stable google-chrome; do
  found=$(command -v "${candidate:-nothing}" || true)
  if [ -n "$found" ] && "$found" --version > /dev/null 2>&1; then
    ln -sf "$found" "$program"
    exit 0
  fi
done

command -v apt-get > /dev/null && command -v dpkg > /dev/null || { echo "there is no apt-get that could fetch chromium" >&2; exit 1; }
missing() { apt-get -s install --no-install-recommends chromium fonts-dejavu-core 2> /dev/null | awk '/^Inst/ {print $2}'; }
packages=$(missing)
[ -n "$packages" ] || { apt-get update > "$folder/apt.log" 2>&1 && packages=$(missing); }
[ -n "$packages" ] || { echo "apt-get knows no package chromium" >&2; exit 1; }
echo "Fetching chromium into $folder; this takes a minute"
(
  cd "$folder"
  # shellcheck disable=SC2086  # names of packages, a word each
  apt-get download $packages > apt.log 2>&1 || { cat apt.log >&2; exit 1; }
  for package in *.deb; do dpkg -x "$package" root; done
  rm -f -- *.deb
)
root=$(cd "$folder/root" && pwd)
libraries=$(find "$root" -name '*.so*' -not -path '*/lib/chromium/*' -exec dirname {} + | sort -u | paste -s -d:)
cat > "$root/fonts.conf" << END
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><include ignore_missing="yes">/etc/fonts/fonts.conf</include><dir>$root/usr/share/fonts</dir></fontconfig>
END
cat > "$program" << END
#!/bin/sh
LD_LIBRARY_PATH=$libraries FONTCONFIG_FILE=$root/fonts.conf exec $root/usr/lib/chromium/chromium "\$@"
END
chmod +x "$program"
"$program" --version > /dev/null || { rm -f "$program"; echo "the chromium that was fetched does not run" >&2; exit 1; }
