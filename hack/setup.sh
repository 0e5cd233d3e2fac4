#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Brings the tools that the build and the tests need into bin/, each once for each
# pinned version:
#
#   hack/setup.sh [kube] [managers] [kubectl] [lint] [generate] [spire] [vault] [s3] [packages] [watch] [vm]   (default: all)
#   hack/setup.sh agents
#   hack/setup.sh upstream
#   hack/setup.sh helm olm
#
# kube      etcd and kube-apiserver: from KUBEBUILDER_ASSETS if they are there, else downloaded
#           where the network has them, else built from the Go modules in hack/tools.
# managers  kube-controller-manager, of the same version and in the same ways.
# kubectl   kubectl of the same version, in the same ways.
# lint      golangci-lint, built from its Go module.
# generate  controller-gen, oapi-codegen and sqlc, each built from its Go module.
# spire     spire-server and spire-agent, built from their Go module.
# vault     a Vault core with the few backends that tests log in to, built from its Go
#           module. It is a test's secrets manager, and no part of the product.
# s3        versitygw, an S3 server over a folder that tests write to, built from its Go
#           module. It is no part of the product.
# agents    buildkite-agent, built from its Go module, unless BUILDKITE_AGENT names one.
# upstream  metallb-controller, MetalLB's, and kubevirt-webhook, KubeVirt's admission of
#           VirtualMachines, each built from its Go module: tests have them judge what we
#           write. They are no part of the product.
# helm      helm, built from its Go module: it installs what a release has, in a test.
# olm       operator-verify, the Operator Framework's validator, built from its Go module: it
#           looks at the bundle of a release, in a test.
# packages  the Debian packages of hack/packages.txt.
# watch     the Debian packages of hack/packages-watch.txt: a browser and Prometheus.
# vm        the Debian packages of hack/packages-vm.txt, which make and boot real machines.
#
# KUBE_DOWNLOAD_URL names another place to download from, "off" none.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
bin=$root/bin
stamps=$bin/.stamps
mkdir -p "$stamps"

started=$SECONDS
download_url=${KUBE_DOWNLOAD_URL:-https://dl.k8s.io/release}
kube_version=$(awk '$2 == "k8s.io/kubernetes" {print $3} $1 == "k8s.io/kubernetes" {print $2}' hack/tools/kube/go.mod | head -n 1)
# A program that was built from its module does not know its version.
kube_ldflags="-X k8s.io/component-base/version.gitVersion=$kube_version -X k8s.io/component-base/version.gitCommit=module -X k8s.io/component-base/version.gitTreeState=clean"
os=$(go env GOOS)
arch=$(go env GOARCH)

# shellcheck source=hack/lib.sh
. hack/lib.sh

# key is what a tool in bin/ was made from: its module, how it is linked, and for what.
key() {
	local module=$1 ldflags=$2
	{
		cat "hack/tools/$module"/go.mod "hack/tools/$module"/go.sum
		echo "$ldflags $os $arch"
	} | cksum | tr -d '\n'
}

# current says whether a tool is there and made from what is pinned now.
current() {
	local name=$1 want=$2
	[ -x "$bin/$name" ] && [ "$(cat "$stamps/$name" 2>/dev/null)" = "$want" ]
}

# go_tool builds one program out of a tool module.
go_tool() {
	local module=$1 package=$2 name=$3 ldflags=$4 try
	# A registry that is slow to answer on a busy machine is asked again.
	for try in 1 2 3; do
		(cd "hack/tools/$module" && go list -deps "$package" >/dev/null) && break
		[ "$try" -lt 3 ] && sleep $((try * 5))
	done
	# Without C they are made of the same parts of Go as everything else here.
	local -x CGO_ENABLED=0
	# Into another file first, so that a running program or a broken build does no harm.
	(cd "hack/tools/$module" && go build -trimpath -ldflags "-s -w $ldflags" -o "$bin/.$name.new" "$package") &&
		mv -f "$bin/.$name.new" "$bin/$name"
}

# build is go_tool with progress, once for each pin.
build() {
	local name=$1 module=$2 package=$3 cost=$4 ldflags=${5:-} want
	label=$name
	want=$(key "$module" "$ldflags")
	if current "$name" "$want"; then
		say "there"
		return
	fi
	during "building from Go modules, $cost" "$bin/.$name.log" go_tool "$module" "$package" "$name" "$ldflags"
	printf '%s' "$want" >"$stamps/$name"
	rm -f "$bin/.$name.log"
}

# from_assets links a program of KUBEBUILDER_ASSETS, where there is one.
from_assets() {
	local name=$1 assets=${KUBEBUILDER_ASSETS:-}
	[ -n "$assets" ] && [ "$(cd "$assets" 2>/dev/null && pwd -P)" != "$bin" ] && [ -x "$assets/$name" ] || return 1
	ln -sfn "$(cd "$assets" && pwd -P)/$name" "$bin/$name"
	printf 'assets' >"$stamps/$name"
	say "from KUBEBUILDER_ASSETS"
}

fetch() { curl --fail --silent --show-error --location --connect-timeout 3 --max-time "$1" --output "$2" "$3"; }

# from_download gets a release binary and its checksum, where the network has them.
from_download() {
	local name=$1 want=$2 url=$download_url/$kube_version/bin/$os/$arch/$1 new=$bin/.$1.new sum
	[ "$download_url" != off ] && command -v curl >/dev/null || return 1
	if ! fetch 10 "$new.sha256" "$url.sha256" 2>/dev/null; then
		rm -f "$new.sha256"
		say "could not be downloaded from $download_url"
		return 1
	fi
	if ! during "downloading $kube_version" "$bin/.$name.log" fetch 300 "$new" "$url"; then
		rm -f "$new" "$new.sha256"
		return 1
	fi
	sum=$({ sha256sum "$new" 2>/dev/null || shasum -a 256 "$new"; } | cut -d ' ' -f 1)
	if [ "$sum" != "$(tr -d '[:space:]' <"$new.sha256")" ]; then
		say "the download does not match its checksum, dropped"
		rm -f "$new" "$new.sha256"
		return 1
	fi
	chmod +x "$new"
	mv -f "$new" "$bin/$name"
	rm -f "$new.sha256" "$bin/.$name.log"
	printf '%s' "$want" >"$stamps/$name"
}

# kube brings one program of the control plane.
kube() {
	local name=$1 cost=$2 want
	label=$name
	if from_assets "$name"; then
		return
	fi
	want=$(key kube "$kube_ldflags")
	if current "$name" "$want"; then
		say "there"
		return
	fi
	if from_download "$name" "$want"; then
		return
	fi
	build "$name" kube "k8s.io/kubernetes/cmd/$name" "$cost" "$kube_ldflags"
}

etcd() {
	label=etcd
	from_assets etcd || build etcd etcd go.etcd.io/etcd/server/v3 "less than a minute on two cores"
}

# packages installs the Debian packages of a list that are missing.
packages() {
	local list=${1:-hack/packages.txt} package program why missing=() sudo=()
	label=packages
	while read -r package program why; do
		case $package in '' | '#'*) continue ;; esac
		if ! PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null; then
			missing+=("$package")
			say "$package is missing ($why)"
		fi
	done <"$list"
	if [ ${#missing[@]} -eq 0 ]; then
		say "there"
		return
	fi
	if [ "$(id -u)" -ne 0 ]; then
		sudo=(sudo -n)
	fi
	if ! command -v apt-get >/dev/null || { [ ${#sudo[@]} -gt 0 ] && ! sudo -n true 2>/dev/null; }; then
		say "install by hand what is missing: apt-get install --no-install-recommends ${missing[*]}"
		return 1
	fi
	during "apt-get update" "$bin/.packages.log" "${sudo[@]}" apt-get update
	during "apt-get install ${missing[*]}" "$bin/.packages.log" \
		"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
	rm -f "$bin/.packages.log"
}

# plan turns the groups asked for into a list of steps, so that they can be counted.
plan=()
for group in "${@:-kube managers kubectl lint generate spire vault s3 packages watch vm}"; do
	for word in $group; do
		case $word in
		kube) plan+=("etcd" "kube kube-apiserver about_4_minutes_on_two_cores") ;;
		managers) plan+=("kube kube-controller-manager about_a_minute") ;;
		kubectl) plan+=("kube kubectl about_a_minute") ;;
		lint) plan+=("build golangci-lint golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint about_2_minutes_on_two_cores") ;;
		generate) plan+=("build controller-gen controller-gen sigs.k8s.io/controller-tools/cmd/controller-gen less_than_a_minute_on_two_cores" "build oapi-codegen oapi-codegen github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen a_few_seconds" "build sqlc sqlc github.com/sqlc-dev/sqlc/cmd/sqlc about_a_minute_and_a_half_on_two_cores") ;;
		spire) plan+=("build spire-server spire github.com/spiffe/spire/cmd/spire-server about_5_minutes_on_two_cores" "build spire-agent spire github.com/spiffe/spire/cmd/spire-agent about_a_minute_more") ;;
		vault) plan+=("build test-vault vault . about_4_minutes_on_two_cores") ;;
		s3) plan+=("build versitygw versitygw github.com/versity/versitygw/cmd/versitygw about_a_minute_on_two_cores") ;;
		agents) [ -n "${BUILDKITE_AGENT:-}" ] || plan+=("build buildkite-agent buildkite-agent github.com/buildkite/agent/v3 about_5_minutes_on_two_cores") ;;
		upstream) plan+=("build metallb-controller metallb go.universe.tf/metallb/controller about_2_minutes_on_two_cores" "build kubevirt-webhook kubevirt . about_4_minutes_on_two_cores") ;;
		helm) plan+=("build helm helm helm.sh/helm/v4/cmd/helm about_3_minutes_on_two_cores") ;;
		olm) plan+=("build operator-verify operator-verify github.com/operator-framework/api/cmd/operator-verify less_than_a_minute_on_two_cores") ;;
		packages) plan+=("packages") ;;
		watch) plan+=("packages hack/packages-watch.txt") ;;
		vm) plan+=("packages hack/packages-vm.txt") ;;
		*)
			echo "setup: unknown group $word: use kube, managers, kubectl, lint, generate, spire, vault, s3, agents, upstream, helm, olm, packages, watch or vm" >&2
			exit 2
			;;
		esac
	done
done

# Two setups at once would bring the same thing twice.
alone() {
	if command -v flock >/dev/null; then
		exec 9>"$stamps/$1.lock"
		if ! flock -n 9; then
			echo "setup: waiting for another one to bring $1"
			flock 9
		fi
	fi
}

steps=${#plan[@]}
for entry in "${plan[@]}"; do
	step=$((step + 1))
	read -r -a words <<<"$entry"
	case ${words[0]} in
	build | kube) alone "${words[1]}" ;;
	*) alone "${words[0]}" ;;
	esac
	"${words[@]//_/ }"
done

if [ $((SECONDS - started)) -gt 5 ]; then
	echo "setup: done in $(clock $((SECONDS - started)))"
fi
