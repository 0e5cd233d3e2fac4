// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	testlibvirt "github.com/hyperfleet/hyperfleet/test/libvirt"
)

// commandPattern matches a command in a message.
var commandPattern = regexp.MustCompile("`(virsh [^`]+)`")

// follow runs the commands of a message, as the administrator of a host. values are words of the message that the
// administrator replaces, each followed by its value. The test fails if the message has no command.
func follow(t *testing.T, h *testlibvirt.Host, message string, values ...string) {
	t.Helper()

	commands := commandPattern.FindAllStringSubmatch(message, -1)
	if len(commands) == 0 {
		t.Fatalf("the message has no command: %s", message)
	}

	for _, command := range commands {
		runScript(t, h, t.TempDir(), strings.NewReplacer(values...).Replace(command[1]))
	}
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*hypervisor.Error](err); ok {
		return e.Reason
	}

	return ""
}

// TestFixesOfHosts runs the commands that the errors of a host name, until machines can be created on it.
func TestFixesOfHosts(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	pool, network := "pool-"+s.name, "network-"+s.name
	s.config.Hosts[0].StoragePool, s.config.Hosts[0].Network = pool, network

	definition := filepath.Join(t.TempDir(), "network.xml")
	s.must(os.WriteFile(definition, []byte("<network><name>"+network+"</name><forward mode='bridge'/><bridge name='br0'/></network>"), 0o600))

	p := s.connectUntilEnd()
	fix := func(reason string) {
		t.Helper()

		_, err := p.Check(t.Context())
		if reasonOf(err) != reason {
			t.Fatalf("want the reason %s, got %v", reason, err)
		}

		follow(t, shared, err.Error(), "DIRECTORY", filepath.Join(shared.Dir, pool), "FILE", definition)
	}

	fix("StoragePoolUnusable") // it does not exist
	t.Cleanup(func() {
		runScript(t, shared, "", fmt.Sprintf("virsh -q pool-destroy %[1]s; virsh -q pool-undefine %[1]s", pool))
	})

	fix("NetworkMissing")
	t.Cleanup(func() {
		runScript(t, shared, "", fmt.Sprintf("virsh -q net-destroy %[1]s; virsh -q net-undefine %[1]s", network))
	})

	fix("NetworkInactive")
	runScript(t, shared, "", "virsh -q pool-destroy "+pool)
	fix("StoragePoolUnusable") // it is not active

	_, err := p.Check(t.Context())
	s.must(err)

	runScript(t, shared, "", fmt.Sprintf("virsh pool-info %s | grep -q '^Autostart: *yes' && virsh net-info %s | grep -q '^Autostart: *yes'",
		pool, network))
}

// TestFixesOfTemplates runs the command that the error of a template names. Then the template can be used.
func TestFixesOfTemplates(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	pool, dir := "templates-"+s.name, filepath.Join(shared.Dir, "templates-"+s.name)
	inPool, elsewhere := "known-"+s.name, "elsewhere-"+s.name

	s.must(os.Mkdir(dir, 0o755))
	s.defineDomain(inPool, filepath.Join(s.dir, "domain.qcow2"))
	s.defineDomain(elsewhere, filepath.Join(dir, "domain.qcow2"))

	p := s.connectUntilEnd()

	for _, c := range []struct {
		disk   string
		ref    hypervisor.TemplateRef
		reason string
	}{
		{s.dir + "/volume.qcow2", hypervisor.TemplateRef{Name: "volume.qcow2"}, "TemplateNotFound"},
		{s.dir + "/domain.qcow2", hypervisor.TemplateRef{Kind: hypervisor.TemplateDomain, Name: inPool}, "TemplateInvalid"},
		{dir + "/domain.qcow2", hypervisor.TemplateRef{Kind: hypervisor.TemplateDomain, Name: elsewhere}, "TemplateInvalid"},
	} {
		shape := hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true}

		runScript(t, shared, "", fmt.Sprintf("qemu-img create -q -f qcow2 %s %d", c.disk, diskSize))

		_, err := p.Resolve(t.Context(), c.ref, shape)
		if reasonOf(err) != c.reason {
			t.Fatalf("%s: want the reason %s, got %v", c.ref.Name, c.reason, err)
		}

		follow(t, shared, err.Error(), " templates", " "+pool)

		if _, err := p.Resolve(t.Context(), c.ref, shape); err != nil {
			t.Errorf("after the command: %v", err)
		}
	}

	runScript(t, shared, "", fmt.Sprintf("virsh -q pool-destroy %[1]s; virsh -q pool-undefine %[1]s", pool))
}

// The guest of TestFixOfFullPool writes one sector to each cluster of its qcow2 disk. So the disk grows by the size of a
// cluster each time.
const (
	clusters    = 64
	clusterSize = 64 << 10
)

// newWriter returns the first sector of a disk whose guest writes to the disk and powers off: x86 code in real mode, which
// the firmware loads at 0x7c00.
func newWriter() []byte {
	const sector = 512

	code := []byte{
		0xfa,       // cli
		0x31, 0xc0, // xor ax, ax
		0x8e, 0xd8, // mov ds, ax
		0x8e, 0xd0, // mov ss, ax
		0xbc, 0x00, 0x7c, // mov sp, 0x7c00
		0xfb,                 // sti
		0xb9, clusters, 0x00, // mov cx, clusters
		// next:
		0x51,             // push cx
		0xbe, 0x2a, 0x7c, // mov si, packet
		0xb8, 0x00, 0x43, // mov ax, 0x4300: extended write to the disk in dl
		0xcd, 0x13, // int 0x13
		0x81, 0x06, 0x32, 0x7c, clusterSize / sector, 0x00, // add word [packet+8], sectors of a cluster
		0x59,       // pop cx
		0xe2, 0xee, // loop next
		0xba, 0x04, 0x06, // mov dx, 0x604: the power management of q35
		0xb8, 0x00, 0x20, // mov ax, 0x2000: power off
		0xef,       // out dx, ax
		0xf4,       // hlt
		0xeb, 0xfd, // jmp to hlt
		// packet: its size, 1 sector, from 0:0x7c00, to the second cluster of the disk
		0x10, 0x00, 0x01, 0x00, 0x00, 0x7c, 0x00, 0x00, clusterSize / sector, 0, 0, 0, 0, 0, 0, 0,
	}

	out := make([]byte, sector)
	copy(out, code)
	copy(out[sector-2:], []byte{0x55, 0xaa})

	return out
}

// createWriter creates a template with the guest, and a volume that takes half of the pool.
func (f *fleet) createWriter(name string, poolSize int64) {
	f.Helper()

	f.must(f.hosts[name].Use(func(rpc *golibvirt.Libvirt) error {
		pool, err := rpc.StoragePoolLookupByName(testlibvirt.PoolName)
		f.must(err)

		_, err = rpc.StorageVolCreateXML(pool, fmt.Sprintf("<volume><name>filler-half</name><capacity>%[1]d</capacity>"+
			"<allocation>%[1]d</allocation><target><format type='raw'/></target></volume>", poolSize/2), 0)
		f.must(err)

		boot := newWriter()

		v, err := rpc.StorageVolCreateXML(pool, fmt.Sprintf("<volume><name>writer.img</name><capacity>%d</capacity>"+
			"<allocation>0</allocation><target><format type='raw'/></target></volume>", diskSize), 0)
		f.must(err)

		return rpc.StorageVolUpload(v, bytes.NewReader(boot), 0, uint64(len(boot)), 0)
	}))
}

// TestFixOfFullPool has a guest that writes until the storage pool of its host is full. When there is space again, the command
// in the message of the machine lets the guest go on.
func TestFixOfFullPool(t *testing.T) {
	t.Parallel()

	const poolSize = 6 * mebibyte

	f := newFleet(t, map[string]int64{"host": poolSize})
	f.createWriter("host", poolSize)

	p, spec := f.connect(), f.newSpec()
	spec.Template.Name = "writer.img"

	_, err := conformance.Create(t.Context(), p, &spec, newSeed)
	f.must(err)

	get := func() hypervisor.Machine {
		m, err := p.Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})
		f.must(err)

		return m
	}

	f.eventually("the machine waits for space", func() bool { return strings.Contains(get().Message, "virsh resume") })
	f.must(f.hosts["host"].EmptyPool())
	follow(t, f.hosts["host"], get().Message)
	f.eventually("the guest has powered off", func() bool { return get().State == hypervisor.StateStopped })

	f.must(conformance.Delete(t.Context(), p, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))
	f.checkNothingLeft(p)
}
