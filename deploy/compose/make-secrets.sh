#!/bin/sh
# Makes the secrets that the compose files name, in the folder `secrets` beside them; one that is there is left as it is.
set -eu
cd "$(dirname "$0")"

# The files can be read by all, since containers have users of their own; the folder is yours alone.
umask 022
mkdir -p secrets
chmod 700 secrets

make() {
    [ -e "secrets/$1" ] || printf '%s' "$2" > "secrets/$1"
}

random() {
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
}

make database_password "$(random)"
make SEMEL_URL "postgresql://semel:$(cat secrets/database_password)@database/semel"
make SEMEL_SECRET "$(random)"
make SEMEL_TOKENS__SHOP__TOKEN "$(random)"
make SEMEL_TOKENS__OPS__TOKEN "$(random)"
