#!/usr/bin/env bash
# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the machine images for tests in bin/vm. It rebuilds an image only if its inputs have changed:
#
#   hack/vm-image/build.sh
#
# debian.tar      Debian with the packages in packages.txt, created by mmdebstrap
# vmlinuz         its kernel
# untuned.qcow2   Debian without changes, and untuned.initrd, its own initrd
# runner.qcow2    Debian tuned for boot speed (tune.sh, overlay/), with the bootstrap service, spire-agent and the
#                 simulated runner of forgesim, and runner.initrd and runner.cmdline, the kernel arguments
#
# The programs come from bin/. Run `make build` and `hack/setup.sh spire` first. The script needs root or sudo without
# a password, but no loop devices and no mounts, so that it also works in containers. DEBIAN_MIRROR sets another
# Debian mirror.
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
	echo "vm-image: machine images can only be built on x86_64" >&2
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

# sum_of prints a checksum of files.
sum_of() { cat "$@" | cksum | tr -d ' \n'; }

# is_current succeeds if a file exists and was built from the current inputs.
is_current() { [ -e "$out/$1" ] && [ "$(cat "$out/.$1.made" 2>/dev/null)" = "$2" ]; }

words() { grep -v '^#' "$1" | paste -sd , -; }

debian() {
	local mirror=(${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"})
	# Machines need no documentation and no translations.
	mmdebstrap --variant=minbase --format=tar --include="$(words $here/packages.txt)" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
		"$suite" "$out/.debian.tar" "${mirror[@]}"
	mv "$out/.debian.tar" "$out/debian.tar"
}

# unpack unpacks Debian and removes files that are specific to the build machine.
unpack() {
	rm -rf "$1"
	mkdir -p "$1"
	tar -xf "$out/debian.tar" -C "$1" --exclude='./dev/*'
	rm -rf "$1"/var/lib/apt/lists/* "$1"/etc/{resolv.conf,hostname} "$1"/etc/ssh/ssh_host_*
	: >"$1/etc/machine-id"
}

# disk writes a tree to a disk image without partitions. Clones resize the file system to the size of their disk.
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
	# ds=nocloud makes cloud-init apply its data before the network is up. show_status prints the systemd units, from
	# which tests measure the boot. The other arguments save time: they disable mitigations that protect processes from
	# each other, which a machine for one job does not need, and checks for clocks that the emulator does not have.
	cp $here/cmdline "$out/runner.cmdline"
	install -D -m 0755 "$bin/bootstrap-service" "$tree/opt/hyperfleet/bootstrap-service"
	install -D -m 0755 "$bin/spire-agent" "$tree/opt/spire/bin/spire-agent"
	if ! chroot "$tree" /opt/spire/bin/spire-agent --version; then
		echo "bin/spire-agent does not run on Debian $suite, because it needs a newer C library" >&2
		return 1
	fi
	"$bin/forgesim" image "$tree"
	# Jobs run as the user runner, who has no privileges, no sudo and no password.
	chroot "$tree" useradd --create-home --shell /bin/bash runner
	chroot "$tree" chown -R runner:runner /opt/actions-runner
	# QEMU loads the kernel and the initrd directly.
	rm -rf "$tree"/boot/* "$tree"/{vmlinuz,initrd.img}{,.old}
	disk "$tree" runner.qcow2
}

# build_image FILE KEY BUILD_FUNCTION TITLE: builds a file once for each key.
build_image() {
	local file=$1 key=$2 build_function=$3 title=$4
	step=$((step + 1))
	label=$file
	if is_current "$file" "$key"; then
		log_step "up to date"
		return
	fi
	rm -f "$out/.$file.made"
	run_with_progress "$title" "$out/.$file.log" "$build_function"
	printf '%s' "$key" >"$out/.$file.made"
	rm -f "$out/.$file.log"
}

base=$(sum_of $here/packages.txt <(declare -f debian) <(echo "$suite"))
common=$base-$(sum_of <(declare -f unpack disk))
untuned_key=$common-$(sum_of <(declare -f untuned))
tuning=$(find $here -type f ! -name build.sh | LC_ALL=C sort)
# shellcheck disable=SC2086 # a list of files
runner_key=$common-$(sum_of <(declare -f runner) $tuning "${programs[@]/#/$bin/}")

# Only root can write the files of an image, because they belong to many users. Who is not root can use images that exist.
if [ "$(id -u)" -ne 0 ]; then
	if is_current debian.tar "$base" && is_current untuned.qcow2 "$untuned_key" && is_current runner.qcow2 "$runner_key"; then
		echo "vm-image: up to date"
		exit
	fi
	if ! sudo -n true 2>/dev/null; then
		echo "vm-image: run this script as root, or allow sudo without a password" >&2
		exit 1
	fi
	sudo -n --preserve-env=DEBIAN_MIRROR "$here/build.sh"
	sudo -n chown -R "$(id -u):$(id -g)" "$out"
	exit
fi

# Prevent two builds at the same time, because they would write the same files.
exec 8>"$out/.lock"
if ! flock -n 8; then
	echo "vm-image: waiting for another build"
	flock 8
fi

build_image debian.tar "$base" debian "Debian $suite with its packages, about a minute"
build_image untuned.qcow2 "$untuned_key" untuned "writing the file system"
build_image runner.qcow2 "$runner_key" runner "tuning, writing the file system"
