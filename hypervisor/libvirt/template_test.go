// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	golibvirt "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
)

// defineTemplate defines a domain with the disk of the site's template, and with tags.
func (s *site) defineTemplate(name string, tags ...string) {
	s.t.Helper()
	s.defineDomain(name, filepath.Join(s.dir, template), tags...)
}

// defineDomain defines a domain with a disk and with tags.
func (s *site) defineDomain(name, disk string, tags ...string) {
	s.t.Helper()

	s.mu.Lock()
	s.foreign = append(s.foreign, name)
	s.mu.Unlock()

	s.use(func(rpc *golibvirt.Libvirt) error {
		_, err := rpc.DomainDefineXMLFlags(fmt.Sprintf(`<domain type='qemu'><name>%s</name>
<metadata><h:template xmlns:h='https://hyperfleet.io/libvirt/1'><h:tag>%s</h:tag></h:template></metadata>
<memory unit='MiB'>32</memory><os><type>hvm</type></os><devices>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%s'/><target dev='sda' bus='sata'/></disk>
<sound model='ich9'/></devices></domain>`, name, strings.Join(tags, "</h:tag><h:tag>"), disk), 0)

		return err
	})
}

// Machines are created from a volume and from a domain, which is found by its name or its tags, as linked and as
// full clones.
func TestTemplates(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		ref        hypervisor.TemplateRef
		isLinked   bool
		fromDomain bool
	}{
		"linked volume": {hypervisor.TemplateRef{Kind: hypervisor.TemplateStorageVolume, Name: template}, true, false},
		"full volume":   {hypervisor.TemplateRef{Kind: hypervisor.TemplateStorageVolume, Name: template}, false, false},
		"domain":        {hypervisor.TemplateRef{Kind: hypervisor.TemplateDomain, Name: "NAME"}, true, true},
		"tags":          {hypervisor.TemplateRef{Kind: hypervisor.TemplateTaggedDomain, Name: "NAME,linux"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSite(t)
			source := "template-" + s.name
			s.defineTemplate(source, "linux", source)
			s.defineTemplate("other-"+source, "linux")

			p := s.connect(t, hypervisor.Options{OperatorUID: "operator"})
			t.Cleanup(p.Close)

			c.ref.Name = strings.ReplaceAll(c.ref.Name, "NAME", source)
			spec := hypervisor.MachineSpec{
				Owner: hypervisor.Owner{Namespace: "ci", Name: "claim", UID: "uid"}, Template: c.ref,
				Shape: hypervisor.Shape{CPU: 2, Memory: 64 * mebibyte, Disk: 2 * diskSize, Linked: c.isLinked},
			}

			found, err := p.Resolve(t.Context(), spec.Template, spec.Shape)
			if err != nil || len(found) != 1 || found[0].DiskBytes != diskSize {
				t.Fatalf("resolve: got %+v (%v)", found, err)
			}

			if _, err := conformance.Create(t.Context(), p, &spec, newSeed); err != nil {
				t.Fatal(err)
			}

			s.checkMachine(spec, c.isLinked, c.fromDomain)

			if err := conformance.Delete(t.Context(), p, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// checkMachine checks the definition and the disk of a machine.
func (s *site) checkMachine(spec hypervisor.MachineSpec, isLinked, fromDomain bool) {
	s.t.Helper()

	s.use(func(rpc *golibvirt.Libvirt) error {
		d, ok := s.find(rpc, spec.ID)
		if !ok {
			s.t.Fatal("the machine does not exist")
		}

		text, err := rpc.DomainGetXMLDesc(d, 0)
		s.must(err)

		var parsed libvirtxml.Domain

		s.must(parsed.Unmarshal(text))

		if parsed.VCPU.Value != 2 || len(parsed.Devices.Disks) != 2 || len(parsed.Devices.Interfaces) != 1 {
			s.t.Errorf("the definition is incomplete:\n%s", text)
		}

		if hasSound := len(parsed.Devices.Sounds) > 0; hasSound != fromDomain || (parsed.Devices.Disks[0].Target.Bus == "sata") != fromDomain {
			s.t.Errorf("the devices are not those of the template:\n%s", text)
		}

		// The kernel of Debian's cloud images has no driver for SATA.
		if iso := parsed.Devices.Disks[1]; iso.Target.Bus != "scsi" || !hasModel(&parsed, *iso.Address.Drive.Controller, "virtio-scsi") {
			s.t.Errorf("the cloud-init ISO is not on virtio:\n%s", text)
		}

		v, err := rpc.StorageVolLookupByPath(parsed.Devices.Disks[0].Source.File.File)
		s.must(err)

		text, err = rpc.StorageVolGetXMLDesc(v, 0)
		s.must(err)

		var disk libvirtxml.StorageVolume

		s.must(disk.Unmarshal(text))

		if disk.Capacity.Value != 2*diskSize || (disk.BackingStore != nil) != isLinked {
			s.t.Errorf("the disk is not what it should be:\n%s", text)
		}

		return nil
	})
}

// hasModel reports whether the SCSI controller has the model.
func hasModel(d *libvirtxml.Domain, index uint, model string) bool {
	return slices.ContainsFunc(d.Devices.Controllers, func(c libvirtxml.DomainController) bool {
		return c.Type == "scsi" && c.Index != nil && *c.Index == index && c.Model == model
	})
}

// The operator ends after a full clone, which may be incomplete. The next process replaces it.
func TestFullCloneOfEarlierProcessIsReplaced(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	spec := newTransientSpec()
	spec.Shape.Linked = false
	s.createUntil(&spec, "copyVolume", false)

	p := s.connectUntilEnd()
	if m, err := conformance.Create(t.Context(), p, &spec, newSeed); err != nil || m.State != hypervisor.StateRunning {
		t.Fatalf("want a machine that runs, got %+v (%v)", m, err)
	}

	s.must(conformance.Delete(t.Context(), p, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))

	if state := s.inspect(); len(state.Machines)+len(state.Seeds) != 0 {
		t.Errorf("want nothing left, got %+v", state)
	}
}

// A machine waits until the machine of an earlier claim of the same name is deleted, because both would have the same
// hostname and address.
func TestNamesake(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	p := s.connect(t, hypervisor.Options{OperatorUID: "operator"})
	t.Cleanup(p.Close)

	spec := hypervisor.MachineSpec{
		Owner:    hypervisor.Owner{Namespace: "ci", Name: "claim", UID: "earlier"},
		Template: hypervisor.TemplateRef{Name: template}, Shape: hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true},
	}
	later := spec
	later.Owner.UID = "later"

	_, err := conformance.Create(t.Context(), p, &spec, newSeed)
	s.must(err)

	var waiting *hypervisor.Error
	if _, err := p.Reserve(t.Context(), later); !errors.As(err, &waiting) || waiting.Reason != hypervisor.ReasonNamesake {
		t.Errorf("want the reason %s, got %v", hypervisor.ReasonNamesake, err)
	}

	s.must(conformance.Delete(t.Context(), p, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))

	_, err = p.Reserve(t.Context(), later)
	s.must(err)
}

// A template that machines cannot be created from is refused with the fix.
func TestUnusableTemplates(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	first, second := "first-"+s.name, "second-"+s.name
	s.defineTemplate(first, s.name)
	s.defineTemplate(second, s.name)

	p := s.connect(t, hypervisor.Options{OperatorUID: "operator"})
	t.Cleanup(p.Close)

	shape := hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true}

	for name, c := range map[string]struct {
		ref    hypervisor.TemplateRef
		change func(*hypervisor.Shape)
		reason string
	}{
		"no volume":       {ref: hypervisor.TemplateRef{Name: "none"}, reason: "TemplateNotFound"},
		"no domain":       {ref: hypervisor.TemplateRef{Kind: hypervisor.TemplateDomain, Name: "none"}, reason: "TemplateNotFound"},
		"no tag":          {ref: hypervisor.TemplateRef{Kind: hypervisor.TemplateTaggedDomain, Name: "none"}, reason: "TemplateNotFound"},
		"ambiguous tag":   {ref: hypervisor.TemplateRef{Kind: hypervisor.TemplateTaggedDomain, Name: s.name}, reason: "TemplateAmbiguous"},
		"small disk":      {change: func(shape *hypervisor.Shape) { shape.Disk = mebibyte }, reason: "DiskTooSmall"},
		"too many cores":  {change: func(shape *hypervisor.Shape) { shape.CPU = 5000 }, reason: "ResourcesExceedNode"},
		"VLAN":            {change: func(shape *hypervisor.Shape) { shape.VLAN = 7 }, reason: "VLANUnsupported"},
		"builtin":         {change: func(shape *hypervisor.Shape) { shape.CloudInitSource = hypervisor.SourceBuiltin }, reason: "CloudInitSourceUnsupported"},
		"kind of another": {ref: hypervisor.TemplateRef{Kind: hypervisor.TemplateImage, Name: "a"}, reason: "TemplateInvalid"},
	} {
		ref, wanted := c.ref, shape
		if ref == (hypervisor.TemplateRef{}) {
			ref.Name = template
		}

		if c.change != nil {
			c.change(&wanted)
		}

		_, err := p.Resolve(t.Context(), ref, wanted)

		e, ok := err.(*hypervisor.Error) //nolint:errorlint // Resolve wraps nothing
		if !ok || e.Reason != c.reason {
			t.Errorf("%s: want the reason %s, got %v", name, c.reason, err)
		}
	}
}
