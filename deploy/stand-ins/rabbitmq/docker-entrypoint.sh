#!/bin/bash
# The server reads RABBITMQ_DEFAULT_USER and _PASS by itself; what is left is to step down from root.
set -euo pipefail

if [ "$(id -u)" = 0 ]; then
	chown rabbitmq:rabbitmq /var/lib/rabbitmq
	exec setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups -- "$0" "$@"
fi
# The distribution's wrapper of this name insists on root.
[ "$1" != rabbitmq-server ] || set -- /usr/lib/rabbitmq/bin/rabbitmq-server
exec "$@"
