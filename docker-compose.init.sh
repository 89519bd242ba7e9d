#!/bin/sh
# Makes the secrets of this deployment for docker-compose.yml: passwords in .env, keys in secrets/. It never changes
# existing ones, so it may run again. It moves keys that you have written into .env to the files that are read.
set -eu
cd "$(dirname "$0")"
umask 077

random() { od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'; } # this many bytes, in hexadecimal

password() {
  grep -q "^$1=." .env || printf '%s=%s\n' "$1" "$(random 24)" >>.env
}

# Prints the value of a variable in .env, without quotes.
setting() { sed -n "s/^$1=//p" .env | tail -n 1 | sed "s/^[\"']\(.*\)[\"']\$/\1/"; }

# secret FILE VARIABLE TEXT: writes the value in .env, or else the text, and removes the variable from .env.
secret() {
  if [ ! -s "secrets/$1" ]; then
    old=$(setting "$2")
    printf '%s\n' "${old:-$3}" | tr ',' '\n' >"secrets/$1.new"
    # Another user reads the file in the containers. On this machine the folder keeps other users out.
    chmod 644 "secrets/$1.new"
    mv "secrets/$1.new" "secrets/$1"
    grep -v "^$2=" .env >.env.new || true
    mv .env.new .env
  fi
}

touch .env
chmod 600 .env
[ -z "$(tail -c 1 .env)" ] || echo >>.env # text would be appended to a last line without an end
mkdir -p secrets
chmod 700 secrets
password POSTGRES_PASSWORD
password POSTGRES_SERVER_PASSWORD
secret api_keys HOLDFAST_API_KEYS "default=$(random 24)"
secret encryption_key HOLDFAST_ENCRYPTION_KEY "k1:$(head -c 32 /dev/urandom | base64)"
