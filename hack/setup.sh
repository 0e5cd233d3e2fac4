#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Installs the tools that the build and the tests need in bin/. It installs each tool once for each pinned
# version:
#
#   hack/setup.sh [kube] [managers] [kubectl] [lint] [generate] [spire] [vault] [s3] [packages] [watch] [vm] [wine]   (default: all)
#   hack/setup.sh agents
#   hack/setup.sh upstream
#   hack/setup.sh clients
#   hack/setup.sh helm olm
#
# kube      etcd and kube-apiserver. They come from KUBEBUILDER_ASSETS, or else from a download. If no download
#           is possible, they are built from the Go modules in hack/tools.
# managers  kube-controller-manager, with the same version and from the same sources.
# kubectl   kubectl, with the same version and from the same sources.
# lint      golangci-lint, built from its Go module.
# generate  controller-gen, oapi-codegen, and protogen with its plug-ins, built from their Go modules.
# spire     spire-server and spire-agent, built from their Go module.
# vault     a Vault core with the backends that the tests use, built from its Go module. It is the secrets manager
#           in tests and not part of a release.
# s3        versitygw, an S3 server that stores objects in a folder, built from its Go module. Tests use it. It is
#           not part of a release.
# agents    buildkite-agent, built from its Go module, unless BUILDKITE_AGENT is set.
# upstream  metallb-controller, the controller of MetalLB, and kubevirt-webhook, the admission webhook of KubeVirt
#           for VirtualMachines, built from their Go modules. Tests validate our objects with them. They are not
#           part of a release.
# clients   tofu, terraform-provider-proxmox and proxmox-api-go, clients of Proxmox VE, built from their Go modules.
#           Tests run them against pvesim. packer-validate is Packer's own code that validates templates. They are not
#           part of a release.
# helm      helm, built from its Go module. A test installs a release with it.
# olm       operator-verify, the validator of the Operator Framework, built from its Go module. A test validates
#           the OLM bundle of a release with it.
# packages  the Debian packages in hack/packages.txt.
# watch     the Debian packages in hack/packages-watch.txt: a browser and Prometheus.
# vm        the Debian packages in hack/packages-vm.txt, which are needed to create and boot real machines.
# wine      the Debian packages in hack/packages-wine.txt, which run programs for Windows.
#
# KUBE_DOWNLOAD_URL sets another download server. "off" disables downloads.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
bin=$root/bin
stamps=$bin/.stamps
mkdir -p "$stamps"

start_time=$SECONDS
download_url=${KUBE_DOWNLOAD_URL:-https://dl.k8s.io/release}
kube_version=$(awk '$2 == "k8s.io/kubernetes" {print $3} $1 == "k8s.io/kubernetes" {print $2}' hack/tools/kube/go.mod | head -n 1)
# Set the version with linker flags, because programs that are built from a module do not know their version.
kube_ldflags="-X k8s.io/component-base/version.gitVersion=$kube_version -X k8s.io/component-base/version.gitCommit=module -X k8s.io/component-base/version.gitTreeState=clean"
os=$(go env GOOS)
arch=$(go env GOARCH)

# shellcheck source=hack/lib.sh
. hack/lib.sh

# build_key prints a checksum of the inputs of a tool: its module, linker flags and platform.
build_key() {
	local module=$1 ldflags=$2
	{
		cat "hack/tools/$module"/go.mod "hack/tools/$module"/go.sum
		echo "$ldflags $os $arch"
	} | cksum | tr -d '\n'
}

# is_current succeeds if a tool exists and was built from the pinned inputs.
is_current() {
	local name=$1 key=$2
	[ -x "$bin/$name" ] && [ "$(cat "$stamps/$name" 2>/dev/null)" = "$key" ]
}

# build_go_tool builds one program from a tool module.
build_go_tool() {
	local module=$1 package=$2 name=$3 ldflags=$4 attempt
	# Retry the download of modules, because a module proxy may be slow.
	for attempt in 1 2 3; do
		(cd "hack/tools/$module" && go list -deps "$package" >/dev/null) && break
		[ "$attempt" -lt 3 ] && sleep $((attempt * 5))
	done
	# Build without cgo, so that the builds share the compiled standard library with the other builds.
	local -x CGO_ENABLED=0
	# Build to a temporary file, so that a failed build does not replace a tool that works.
	(cd "hack/tools/$module" && go build -trimpath -ldflags "-s -w $ldflags" -o "$bin/.$name.new" "$package") &&
		mv -f "$bin/.$name.new" "$bin/$name"
}

# build builds a tool with progress output, unless the current build is up to date.
build() {
	local name=$1 module=$2 package=$3 duration=$4 ldflags=${5:-} key
	label=$name
	key=$(build_key "$module" "$ldflags")
	if is_current "$name" "$key"; then
		log_step "up to date"
		return
	fi
	run_with_progress "building from Go modules, $duration" "$bin/.$name.log" build_go_tool "$module" "$package" "$name" "$ldflags"
	printf '%s' "$key" >"$stamps/$name"
	rm -f "$bin/.$name.log"
}

# link_from_assets links a program in KUBEBUILDER_ASSETS. It fails if the program does not exist there.
link_from_assets() {
	local name=$1 assets=${KUBEBUILDER_ASSETS:-}
	[ -n "$assets" ] && [ "$(cd "$assets" 2>/dev/null && pwd -P)" != "$bin" ] && [ -x "$assets/$name" ] || return 1
	ln -sfn "$(cd "$assets" && pwd -P)/$name" "$bin/$name"
	printf 'assets' >"$stamps/$name"
	log_step "from KUBEBUILDER_ASSETS"
}

fetch() { curl --fail --silent --show-error --location --connect-timeout 3 --max-time "$1" --output "$2" "$3"; }

# download downloads a release binary and verifies its checksum. It fails if the download is not possible.
download() {
	local name=$1 key=$2 url=$download_url/$kube_version/bin/$os/$arch/$1 new=$bin/.$1.new sum
	[ "$download_url" != off ] && command -v curl >/dev/null || return 1
	if ! fetch 10 "$new.sha256" "$url.sha256" 2>/dev/null; then
		rm -f "$new.sha256"
		log_step "cannot download from $download_url"
		return 1
	fi
	if ! run_with_progress "downloading $kube_version" "$bin/.$name.log" fetch 300 "$new" "$url"; then
		rm -f "$new" "$new.sha256"
		return 1
	fi
	sum=$({ sha256sum "$new" 2>/dev/null || shasum -a 256 "$new"; } | cut -d ' ' -f 1)
	if [ "$sum" != "$(tr -d '[:space:]' <"$new.sha256")" ]; then
		log_step "discarding the download because its checksum does not match"
		rm -f "$new" "$new.sha256"
		return 1
	fi
	chmod +x "$new"
	mv -f "$new" "$bin/$name"
	rm -f "$new.sha256" "$bin/.$name.log"
	printf '%s' "$key" >"$stamps/$name"
}

# kube installs one program of Kubernetes.
kube() {
	local name=$1 duration=$2 key
	label=$name
	if link_from_assets "$name"; then
		return
	fi
	key=$(build_key kube "$kube_ldflags")
	if is_current "$name" "$key"; then
		log_step "up to date"
		return
	fi
	if download "$name" "$key"; then
		return
	fi
	build "$name" kube "k8s.io/kubernetes/cmd/$name" "$duration" "$kube_ldflags"
}

etcd() {
	label=etcd
	link_from_assets etcd || build etcd etcd go.etcd.io/etcd/server/v3 "less than a minute on two cores"
}

# packages installs the missing Debian packages of a list.
packages() {
	local list=${1:-hack/packages.txt} package program purpose missing=() sudo=()
	label=packages
	while read -r package program purpose; do
		case $package in '' | '#'*) continue ;; esac
		if ! PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null; then
			missing+=("$package")
			log_step "$package is missing ($purpose)"
		fi
	done <"$list"
	if [ ${#missing[@]} -eq 0 ]; then
		log_step "up to date"
		return
	fi
	if [ "$(id -u)" -ne 0 ]; then
		sudo=(sudo -n)
	fi
	if ! command -v apt-get >/dev/null || { [ ${#sudo[@]} -gt 0 ] && ! sudo -n true 2>/dev/null; }; then
		log_step "install the missing packages manually: apt-get install --no-install-recommends ${missing[*]}"
		return 1
	fi
	run_with_progress "apt-get update" "$bin/.packages.log" "${sudo[@]}" apt-get update
	run_with_progress "apt-get install ${missing[*]}" "$bin/.packages.log" \
		"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
	rm -f "$bin/.packages.log"
}

# plan has the steps for the requested groups. The progress output shows their number.
plan=()
for group in "${@:-kube managers kubectl lint generate spire vault s3 packages watch vm}"; do
	for word in $group; do
		case $word in
		kube) plan+=("etcd" "kube kube-apiserver about_4_minutes_on_two_cores") ;;
		managers) plan+=("kube kube-controller-manager about_a_minute") ;;
		kubectl) plan+=("kube kubectl about_a_minute") ;;
		lint) plan+=("build golangci-lint golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint about_2_minutes_on_two_cores") ;;
		generate) plan+=("build controller-gen controller-gen sigs.k8s.io/controller-tools/cmd/controller-gen less_than_a_minute_on_two_cores" "build oapi-codegen oapi-codegen github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen a_few_seconds" "build protogen protogen . a_few_seconds" "build protoc-gen-go protogen google.golang.org/protobuf/cmd/protoc-gen-go a_few_seconds" "build protoc-gen-go-grpc protogen google.golang.org/grpc/cmd/protoc-gen-go-grpc a_few_seconds") ;;
		spire) plan+=("build spire-server spire github.com/spiffe/spire/cmd/spire-server about_5_minutes_on_two_cores" "build spire-agent spire github.com/spiffe/spire/cmd/spire-agent about_a_minute_more") ;;
		vault) plan+=("build test-vault vault . about_4_minutes_on_two_cores") ;;
		s3) plan+=("build versitygw versitygw github.com/versity/versitygw/cmd/versitygw about_a_minute_on_two_cores") ;;
		agents) [ -n "${BUILDKITE_AGENT:-}" ] || plan+=("build buildkite-agent buildkite-agent github.com/buildkite/agent/v3 about_5_minutes_on_two_cores") ;;
		upstream) plan+=("build metallb-controller metallb go.universe.tf/metallb/controller about_2_minutes_on_two_cores" "build kubevirt-webhook kubevirt . about_4_minutes_on_two_cores") ;;
		clients)
			plan+=("build tofu tofu github.com/opentofu/opentofu/cmd/tofu about_2_minutes_on_two_cores"
				"build terraform-provider-proxmox terraform-provider-proxmox github.com/bpg/terraform-provider-proxmox less_than_a_minute_on_two_cores"
				"build proxmox-api-go proxmox-api-go github.com/Telmate/proxmox-api-go a_few_seconds"
				"build packer-validate packer . about_a_minute_on_two_cores")
			;;
		helm) plan+=("build helm helm helm.sh/helm/v4/cmd/helm about_3_minutes_on_two_cores") ;;
		olm) plan+=("build operator-verify operator-verify github.com/operator-framework/api/cmd/operator-verify less_than_a_minute_on_two_cores") ;;
		packages) plan+=("packages") ;;
		watch) plan+=("packages hack/packages-watch.txt") ;;
		vm) plan+=("packages hack/packages-vm.txt") ;;
		wine) plan+=("packages hack/packages-wine.txt") ;;
		*)
			echo "setup: unknown group $word: use kube, managers, kubectl, lint, generate, spire, vault, s3, agents, upstream, clients, helm, olm, packages, watch, vm or wine" >&2
			exit 2
			;;
		esac
	done
done

# lock_tool waits until no other setup installs the same tool, so that two setups do not build it twice.
lock_tool() {
	if command -v flock >/dev/null; then
		exec 9>"$stamps/$1.lock"
		if ! flock -n 9; then
			echo "setup: waiting for another setup that installs $1"
			flock 9
		fi
	fi
}

# A first build writes about 10 GB to each of these folders. A full disk makes builds and servers fail in many ways.
for folder in "$root" "$(go env GOCACHE)" "${TMPDIR:-/tmp}"; do
	mkdir -p "$folder"
	free=$(df -Pk "$folder" | awk 'NR == 2 {print int($4 / 1024 / 1024)}')
	if [ "$free" -lt 10 ]; then
		echo "setup: warning: $folder has $free GB of free space: a first build and a run of all tests need 10 GB"
	fi
done

steps=${#plan[@]}
for entry in "${plan[@]}"; do
	step=$((step + 1))
	read -r -a words <<<"$entry"
	case ${words[0]} in
	build | kube) lock_tool "${words[1]}" ;;
	*) lock_tool "${words[0]}" ;;
	esac
	"${words[@]//_/ }"
done

if [ $((SECONDS - start_time)) -gt 5 ]; then
	echo "setup: done in $(clock $((SECONDS - start_time)))"
fi
