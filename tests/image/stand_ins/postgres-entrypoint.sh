# What the entry point of the image postgres:18 does with the variables and folders that docker/compose.yaml uses.
set -eu
if [ "$(id -u)" = 0 ]; then
  install --directory --owner=postgres --group=postgres --mode=700 "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --clear-groups sh "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb --username=postgres --pwfile="$POSTGRES_PASSWORD_FILE" --auth-local=trust --auth-host=scram-sha-256
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
  echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
  pg_ctl --wait --options='-c listen_addresses= -c unix_socket_directories=/tmp' start
  createdb --host=/tmp --username=postgres "$POSTGRES_DB"
  for script in /docker-entrypoint-initdb.d/*.sql; do
    psql --no-psqlrc --set=ON_ERROR_STOP=1 --host=/tmp --username=postgres --dbname="$POSTGRES_DB" --file="$script"
  done
  pg_ctl --wait --mode=fast stop
fi
exec "$@" -c unix_socket_directories=/tmp
