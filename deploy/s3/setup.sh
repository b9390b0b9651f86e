#!/bin/sh
# Once per start, in the S3 server's own network: objects are synced to the disk before they are acknowledged, and
# the bucket exists. Both are kept in the server's volume, so a repeat changes nothing.
set -eu

# A bucket that is already there counts as a failure of the command, so what counts is what the server says afterwards.
furnish() {
	printf '%s\n' \
		"fs.configure -locationPrefix=/buckets/ -fsync -apply" \
		"s3.bucket.create -name $BUCKET" |
		weed shell -master=127.0.0.1:9333 -filer=127.0.0.1:8888 >/dev/null 2>&1 || :
	settings=$(printf '%s\n' "fs.configure" "s3.bucket.list" |
		weed shell -master=127.0.0.1:9333 -filer=127.0.0.1:8888 2>/dev/null) || return 1
	case $settings in *'"fsync":'*true*) ;; *) return 1 ;; esac
	case $settings in *"$BUCKET"*) ;; *) return 1 ;; esac
}

attempts_left=30
until furnish; do
	attempts_left=$((attempts_left - 1))
	if [ "$attempts_left" -eq 0 ]; then
		echo "s3-setup: the store did not take its settings" >&2
		exit 1
	fi
	sleep 1
done
echo "s3-setup: fsync is on, bucket $BUCKET is there" >&2
