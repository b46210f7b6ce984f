#!/bin/sh
# Builds an image from the checkout: build.sh TARGET NAME, with docker, podman or buildah, whichever works here. ENGINE chooses one,
# BASE_IMAGE another base than Docker Hub's Python, EXTRAS other extras of pyproject.toml than kafka.
set -eu
cd "$(dirname "$0")/.."
target=$1 name=$2

works() {
  command -v "$1" > /dev/null && "$1" info > /dev/null 2>&1
}

engine=${ENGINE:-}
for each in docker podman buildah; do
  if [ -z "$engine" ] && works "$each"; then engine=$each; fi
done
if [ -z "$engine" ]; then
  echo "no container engine answers: install docker, podman or buildah (Debian: apt-get install buildah runc)" >&2
  exit 1
fi

case $engine in
  docker) build="docker build" ;;
  # Only Docker's format has health checks.
  podman) build="podman build --format docker --layers" ;;
  *) build="buildah build --format docker --layers" ;;
esac
set -- --file docker/Dockerfile --target "$target" --tag "$name"
if [ -n "${BASE_IMAGE:-}" ]; then set -- "$@" --build-arg "BASE_IMAGE=$BASE_IMAGE"; fi
if [ -n "${EXTRAS+set}" ]; then set -- "$@" --build-arg "EXTRAS=$EXTRAS"; fi
echo "Building $name with $engine; the first time this takes minutes"
# shellcheck disable=SC2086  # a command and its options
exec $build "$@" .
