// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// hostBlock matches a block of commands of the libvirt guide.
var hostBlock = regexp.MustCompile("(?s)<!-- [^\n]+ -->\n```sh\n(.*?)```")

// enterDebian runs a script in the folder $1, with the devices and the processes that a Debian needs.
const enterDebian = `set -e
mount -t proc none "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs none "$1/run"
ip link set lo up
exec chroot "$1" env DEBIAN_FRONTEND=noninteractive SYSTEMD_OFFLINE=1 sh -exc "cd /root; $2"`

// startLibvirtd starts libvirtd as systemd does after the installation, and without what needs cgroups.
const startLibvirtd = `
printf 'security_driver = "none"\ncgroup_controllers = []\nnamespaces = []\nstdio_handler = "file"\n' >>/etc/libvirt/qemu.conf
libvirtd --daemon
until virsh list; do sleep 0.1; done
qemu-img create -q -f qcow2 runner.qcow2 8M
`

// placeCertificates does what the guide says about the certificates of a host, and gives virsh that of the operator.
const placeCertificates = `
mkdir -p /etc/pki/CA /etc/pki/libvirt/private
cp cacert.pem /etc/pki/CA/
cp servercert.pem client.pem /etc/pki/libvirt/
cp serverkey.pem client-key.pem /etc/pki/libvirt/private/
mv /etc/pki/libvirt/client.pem /etc/pki/libvirt/clientcert.pem
mv /etc/pki/libvirt/private/client-key.pem /etc/pki/libvirt/private/clientkey.pem
`

// connectOverTLS checks that systemd would serve TLS, and connects as the operator does.
const connectOverTLS = `
systemctl is-enabled libvirtd-tls.socket
kill "$(cat /run/libvirtd.pid)"
while test -e /run/libvirtd.pid; do sleep 0.1; done
libvirtd --daemon --listen
until virsh list; do sleep 0.1; done
virsh -c qemu+tls://host-1.example.com/system vol-list runners | grep runner.qcow2
`

// TestLibvirtGuideOnEmptyDebian follows the guide's steps on a host, on a Debian that has nothing but its essential packages. The
// Debian is a folder. systemd enables units there and starts nothing, so the test starts libvirtd.
func TestLibvirtGuideOnEmptyDebian(t *testing.T) { //nolint:paralleltest // the boots of other tests need the processors
	if testing.Short() {
		t.Skip("the test downloads a Debian")
	}

	if os.Geteuid() != 0 {
		t.Skip("only root can create a Debian")
	}

	page, err := os.ReadFile("../../../docs/guides/libvirt.md")
	if err != nil {
		t.Fatal(err)
	}

	steps, _, _ := strings.Cut(string(page), "\n## 3.")

	blocks := hostBlock.FindAllStringSubmatch(steps, -1)
	if len(blocks) != 5 {
		t.Fatalf("the first steps of the guide have %d blocks of commands, want 5", len(blocks))
	}

	install, pool, certificates, user := blocks[0][1], blocks[1][1], blocks[2][1], blocks[4][1]
	units := strings.ReplaceAll(blocks[3][1], " --now", "") // without systemd
	root := filepath.Join(t.TempDir(), "debian")

	debian := []string{"--variant=minbase", "bookworm", root}
	if mirror := os.Getenv("DEBIAN_MIRROR"); mirror != "" {
		debian = append(debian, mirror)
	}

	runOrFail(t, "mmdebstrap", debian...)

	for name, content := range map[string]string{
		"/etc/hosts":                "127.0.0.1 localhost host-1.example.com\n",
		"/etc/apt/apt.conf.d/99yes": "APT::Get::Assume-Yes true;\n",
		"/usr/sbin/policy-rc.d":     "#!/bin/sh\nexit 101\n", // the installation starts no services
	} {
		if err := os.WriteFile(root+name, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}

	inDebian := []string{"--mount", "--pid", "--fork", "--kill-child", "sh", "-c", enterDebian, "sh", root}

	runOrFail(t, "unshare", append(inDebian, "apt-get update\n"+install+"apt-get install openssh-server\n")...)

	// libvirtd changes the network of its host.
	runOrFail(t, "unshare", append(append([]string{"--net"}, inDebian...),
		startLibvirtd+pool+certificates+placeCertificates+units+user+connectOverTLS)...)
}

// runOrFail runs a program. The test fails with its output if the program fails.
func runOrFail(t *testing.T, program string, args ...string) {
	t.Helper()

	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
}
