#!/bin/bash
# What the official entry point does with the variables that compose.yaml sets: at the first start a cluster, its
# user and its database, made by a server that listens on its socket only.
set -euo pipefail

if [ "$(id -u)" = 0 ]; then
	install --directory --owner postgres --group postgres --mode 0700 "$PGDATA"
	chown postgres:postgres "$PGDATA"
	exec setpriv --reuid=postgres --regid=postgres --init-groups -- "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	: "${POSTGRES_PASSWORD:?POSTGRES_PASSWORD must be set}"
	user=${POSTGRES_USER:-postgres}
	# Without quotes on purpose: the variable holds several options.
	initdb --pgdata="$PGDATA" --username="$user" --pwfile=<(echo "$POSTGRES_PASSWORD") \
		--auth-local=trust --auth-host=scram-sha-256 ${POSTGRES_INITDB_ARGS:-}
	echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
	echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
	pg_ctl --pgdata="$PGDATA" --wait --options="-c listen_addresses='' -k /tmp" start
	createdb --host=/tmp --username="$user" "${POSTGRES_DB:-$user}"
	pg_ctl --pgdata="$PGDATA" --wait --mode=fast stop
fi
exec "$@"
