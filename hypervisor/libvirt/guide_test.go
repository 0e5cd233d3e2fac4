// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/libvirt"
	testlibvirt "github.com/hyperfleet/hyperfleet/test/libvirt"
)

// guideBlock matches a block of commands that this test runs.
var guideBlock = regexp.MustCompile("(?s)<!-- run: TestLibvirtGuide in hypervisor/libvirt -->\n```sh\n(.*?)```")

// TestLibvirtGuide runs the commands of the guide on a host, and then creates a machine from the template.
func TestLibvirtGuide(t *testing.T) {
	t.Parallel()

	s := newSite(t)

	page, err := os.ReadFile("../../docs/guides/libvirt.md")
	s.must(err)

	blocks := guideBlock.FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 3 {
		t.Fatalf("the guide has %d blocks of commands, want 3", len(blocks))
	}

	// The pool and the domain have names and directories of their own, because other cases use the host as well.
	target := filepath.Join(shared.Dir, "guide")
	own := strings.NewReplacer("/var/lib/libvirt/runners", target, " runners", " guide-"+s.name, "metadata runner", "metadata "+s.name)
	dir := t.TempDir()

	run := func(script string) {
		t.Helper()
		runScript(t, shared, dir, script)
	}

	run("qemu-img create -q -f qcow2 runner.qcow2 8M")
	s.defineTemplate(s.name)

	for _, block := range blocks {
		run(own.Replace(block[1]))
	}

	t.Cleanup(func() { run("virsh -q pool-destroy guide-" + s.name + " && virsh -q pool-undefine guide-" + s.name) })
	s.checkCertificates(dir)

	s.config.Hosts[0].StoragePool = "guide-" + s.name

	p, err := libvirt.New(s.config, hypervisor.Options{OperatorUID: "operator"})
	s.must(err)
	t.Cleanup(p.Close)

	shape := hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true}
	for _, ref := range []hypervisor.TemplateRef{
		{Kind: hypervisor.TemplateStorageVolume, Name: "runner.qcow2"}, {Kind: hypervisor.TemplateDomain, Name: s.name},
	} {
		if _, err := p.Resolve(t.Context(), ref, shape); err != nil {
			t.Error(err)
		}
	}
}

// runScript runs commands in a folder, as the administrator of a host.
func runScript(t *testing.T, h *testlibvirt.Host, dir, script string) {
	t.Helper()

	command := exec.CommandContext(context.Background(), "sh", "-ec", script) // also in the cleanup
	command.Dir, command.Env = dir, append(os.Environ(), "LIBVIRT_DEFAULT_URI="+h.URI(), "HOME="+dir)

	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, out)
	}
}

// checkCertificates checks that the guide's certificates are valid for a host and for the operator.
func (s *site) checkCertificates(dir string) {
	s.t.Helper()

	parse := func(name string) *x509.Certificate {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		s.must(err)

		block, _ := pem.Decode(raw)
		cert, err := x509.ParseCertificate(block.Bytes)
		s.must(err)

		return cert
	}

	roots := x509.NewCertPool()
	roots.AddCert(parse("cacert.pem"))

	_, err := parse("servercert.pem").Verify(x509.VerifyOptions{Roots: roots, DNSName: "host-1.example.com"})
	s.must(err)

	_, err = parse("client.pem").Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	s.must(err)
}

// installCommand matches the guide's command that installs packages.
var installCommand = regexp.MustCompile("\n```sh\napt-get (install .*)\n```")

// TestLibvirtGuidePackages lets apt-get plan the guide's installation on a Debian without any package. The plan must have the
// libvirt and QEMU of the tests, and the programs that the other commands of the guide need on a host.
func TestLibvirtGuidePackages(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../../docs/guides/libvirt.md")
	if err != nil {
		t.Fatal(err)
	}

	command := installCommand.FindSubmatch(page)
	if command == nil {
		t.Fatal("the guide has no command that installs packages")
	}

	empty := filepath.Join(t.TempDir(), "status")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	// Every Debian has the packages of priority required.
	args := append(strings.Fields(string(command[1])), "base-files", "base-passwd", "coreutils", "passwd", "util-linux")
	args = append([]string{"--simulate", "-o", "Dir::State::status=" + empty}, args...)

	plan, err := exec.CommandContext(t.Context(), "apt-get", args...).CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound), strings.Contains(string(plan), "Unable to locate package base-files"):
		t.Skip("apt-get knows no packages: run apt-get update on a Debian")
	case err != nil:
		t.Fatalf("%v\n%s", err, plan)
	}

	isInstalled := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^Inst (\S+) `).FindAllStringSubmatch(string(plan), -1) {
		isInstalled[match[1]] = true
	}

	packages, err := os.ReadFile("../../hack/packages.txt")
	if err != nil {
		t.Fatal(err)
	}

	ofTests := regexp.MustCompile(`(?m)^(?:libvirt|qemu)\S+`).FindAllString(string(packages), -1)
	if len(ofTests) < 5 {
		t.Errorf("found only the packages %q in hack/packages.txt", ofTests)
	}

	for _, name := range append(ofTests, "openssl", "ovmf", "systemd", "coreutils", "passwd") {
		if !isInstalled[name] {
			t.Errorf("the guide's command does not install %s", name)
		}
	}
}
