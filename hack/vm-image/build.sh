#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes the machine images that tests boot, into bin/vm, each when what it is made of
# has changed:
#
#   hack/vm-image/build.sh
#
# debian.tar      Debian with the packages of packages.txt, by mmdebstrap
# vmlinuz         its kernel
# untuned.qcow2   that Debian as it is, and untuned.initrd, the initrd that it makes itself
# runner.qcow2    that Debian tuned for boot speed (tune.sh, overlay/), with the bootstrap
#                 service, spire-agent and the stand-in runner of forgesim; runner.initrd and
#                 runner.cmdline, the kernel's arguments
#
# The programs are taken from bin/, where `make build` and `hack/setup.sh spire` put them.
# No loop devices and no mounts: it works in containers, as root (or with sudo that asks
# no password). DEBIAN_MIRROR names another mirror than Debian's own.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bin=$PWD/bin
out=$bin/vm
here=hack/vm-image
suite=bookworm
programs=(bootstrap-service spire-agent forgesim)
mkdir -p "$out"

# shellcheck source=hack/lib.sh
. hack/lib.sh
steps=3

PATH=$PATH:/usr/sbin:/sbin
if [ "$(uname -m)" != x86_64 ]; then
	echo "vm-image: machine images are made for x86_64, on x86_64" >&2
	exit 1
fi
for program in mmdebstrap mkfs.ext4 qemu-img; do
	if ! command -v "$program" >/dev/null; then
		echo "vm-image: $program is missing: run hack/setup.sh vm" >&2
		exit 1
	fi
done
for program in "${programs[@]}"; do
	if [ ! -x "$bin/$program" ]; then
		echo "vm-image: bin/$program is missing: run make build and hack/setup.sh spire" >&2
		exit 1
	fi
done

# The files of an image belong to many users, so it takes root to write them.
if [ "$(id -u)" -ne 0 ]; then
	if ! sudo -n true 2>/dev/null; then
		echo "vm-image: run it as root, or allow sudo without a password: the files of an image belong to many users" >&2
		exit 1
	fi
	sudo -n --preserve-env=DEBIAN_MIRROR "$here/build.sh"
	sudo -n chown -R "$(id -u):$(id -g)" "$out"
	exit
fi

# Two builds at once would write the same files.
exec 8>"$out/.lock"
if ! flock -n 8; then
	echo "vm-image: waiting for another build to end"
	flock 8
fi

# sum_of is what an image is made of, in short.
sum_of() { cat "$@" | cksum | tr -d ' \n'; }

# made says whether a file is there and made of what it would be made of now.
made() { [ -e "$out/$1" ] && [ "$(cat "$out/.$1.made" 2>/dev/null)" = "$2" ]; }

words() { grep -v '^#' "$1" | paste -sd , -; }

debian() {
	local mirror=(${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"})
	# Documentation and translations are of no use to a machine of one job.
	mmdebstrap --variant=minbase --format=tar --include="$(words $here/packages.txt)" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
		"$suite" "$out/.debian.tar" "${mirror[@]}"
	mv "$out/.debian.tar" "$out/debian.tar"
}

# unpack gives the tree of an image without what is of the machine that it was made on.
unpack() {
	rm -rf "$1"
	mkdir -p "$1"
	tar -xf "$out/debian.tar" -C "$1" --exclude='./dev/*'
	rm -rf "$1"/var/lib/apt/lists/* "$1"/etc/{resolv.conf,hostname} "$1"/etc/ssh/ssh_host_*
	: >"$1/etc/machine-id"
}

# disk writes a tree as a disk without partitions; clones grow it to their size.
disk() {
	local tree=$1 name=$2
	truncate -s 1536M "$out/.$name.raw"
	mkfs.ext4 -q -F -L root -E lazy_itable_init=0,lazy_journal_init=0 -d "$tree" "$out/.$name.raw"
	qemu-img convert -O qcow2 "$out/.$name.raw" "$out/.$name.new"
	rm -rf "$out/.$name.raw" "$tree"
	mv "$out/.$name.new" "$out/$name"
}

untuned() {
	local tree=$out/.untuned
	unpack "$tree"
	echo '/dev/sda / ext4 defaults 0 1' >"$tree/etc/fstab"
	cp "$(echo "$tree"/boot/vmlinuz-*)" "$out/vmlinuz"
	cp "$(echo "$tree"/boot/initrd.img-*)" "$out/untuned.initrd"
	disk "$tree" untuned.qcow2
}

runner() {
	local tree=$out/.runner
	unpack "$tree"
	$here/tune.sh "$tree"
	$here/initrd.sh "$tree" "$out/runner.initrd"
	# ds=nocloud has cloud-init apply the medium's data before the network is up; show_status
	# tells of systemd's units, which times the boot. The rest saves time: a machine of one
	# job guards no process from another, and no clock but the emulator's is to be found.
	cp $here/cmdline "$out/runner.cmdline"
	install -D -m 0755 "$bin/bootstrap-service" "$tree/opt/hyperfleet/bootstrap-service"
	install -D -m 0755 "$bin/spire-agent" "$tree/opt/spire/bin/spire-agent"
	if ! chroot "$tree" /opt/spire/bin/spire-agent --version; then
		echo "bin/spire-agent does not run on Debian $suite: it was built against a newer C library" >&2
		return 1
	fi
	"$bin/forgesim" image "$tree"
	# Jobs run as runner, who may nothing: no sudo, no password.
	chroot "$tree" useradd --create-home --shell /bin/bash runner
	chroot "$tree" chown -R runner:runner /opt/actions-runner
	# Kernel and initrd are given to the machine from outside.
	rm -rf "$tree"/boot/* "$tree"/{vmlinuz,initrd.img}{,.old}
	disk "$tree" runner.qcow2
}

# make_image FILE KEY FUNCTION WHAT: makes a file once for each key.
make_image() {
	local file=$1 key=$2 how=$3 what=$4
	step=$((step + 1))
	label=$file
	if made "$file" "$key"; then
		say "there"
		return
	fi
	rm -f "$out/.$file.made"
	during "$what" "$out/.$file.log" "$how"
	printf '%s' "$key" >"$out/.$file.made"
	rm -f "$out/.$file.log"
}

base=$(sum_of $here/packages.txt <(declare -f debian) <(echo "$suite"))
common=$base-$(sum_of <(declare -f unpack disk))
tuning=$(find $here -type f ! -name build.sh | LC_ALL=C sort)
make_image debian.tar "$base" debian "Debian $suite with its packages, about a minute"
make_image untuned.qcow2 "$common-$(sum_of <(declare -f untuned))" untuned "writing the file system"
# shellcheck disable=SC2086 # a list of files
make_image runner.qcow2 "$common-$(sum_of <(declare -f runner) $tuning "${programs[@]/#/$bin/}")" runner "tuning, writing the file system"
