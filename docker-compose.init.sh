#!/bin/sh
# Makes what docker-compose.yml asks for and only this deployment knows: passwords in .env, keys in secrets/. It changes
# none that is there, so it may run again. Keys that you have written into .env are moved to where they are read.
set -eu
cd "$(dirname "$0")"
umask 077

random() { od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'; } # as many bytes, in hexadecimal

password() {
  grep -q "^$1=." .env || printf '%s=%s\n' "$1" "$(random 24)" >>.env
}

# Prints what .env sets, without quotes.
setting() { sed -n "s/^$1=//p" .env | tail -n 1 | sed "s/^[\"']\(.*\)[\"']\$/\1/"; }

# secret FILE VARIABLE TEXT: writes the value that .env has, or else the text, and takes the variable out of .env.
secret() {
  if [ ! -s "secrets/$1" ]; then
    old=$(setting "$2")
    printf '%s\n' "${old:-$3}" | tr ',' '\n' >"secrets/$1.new"
    # Another user reads it in the containers. On this machine the folder keeps others out.
    chmod 644 "secrets/$1.new"
    mv "secrets/$1.new" "secrets/$1"
    grep -v "^$2=" .env >.env.new || true
    mv .env.new .env
  fi
}

touch .env
chmod 600 .env
[ -z "$(tail -c 1 .env)" ] || echo >>.env # a last line without an end would be written on
mkdir -p secrets
chmod 700 secrets
password POSTGRES_PASSWORD
password POSTGRES_SERVER_PASSWORD
secret api_keys HOLDFAST_API_KEYS "default=$(random 24)"
secret encryption_key HOLDFAST_ENCRYPTION_KEY "k1:$(head -c 32 /dev/urandom | base64)"
