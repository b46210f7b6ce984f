# Run by machine.sh: the limits that a container of our image has under `read_only`, `cap_drop: [ALL]` and `no-new-privileges`,
# with tmpfs at /tmp and /dev/shm. Arguments: the statement of the Dockerfile that makes the account, then the command.
set -eu
eval "$1"
shift
awk '{print $5}' /proc/self/mountinfo | sort -u | while read -r path; do
  case $path in
    /proc | /proc/* | /tmp | /dev/shm) ;;
    *) if mountpoint --quiet "$path"; then mount -o remount,bind,ro "$path"; fi ;;  # not one that another covers
  esac
done
limited() {
  setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
}
for path in /home/pgsluice /opt/pgsluice /var/tmp /run /dev; do
  if limited touch "$path/written" 2> /dev/null; then
    echo "$path can be written to" >&2
    exit 1
  fi
done
cd /home/pgsluice
limited env -i PATH="/opt/pgsluice/bin:$PATH" HOME=/home/pgsluice PYTHONUNBUFFERED=1 "$@"
