// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	golibvirt "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
)

// backup is a backup of a machine: its disk, and its definition if it has one.
type backup struct {
	diskName   string
	disk       []byte
	definition string
}

// takeBackup reads the disk and the definition of a machine.
func (s *site) takeBackup(id int) backup {
	s.t.Helper()

	files, err := filepath.Glob(filepath.Join(s.dir, fmt.Sprintf("hf-*-%d-*", id)))
	s.must(err)

	if len(files) != 1 {
		s.t.Fatalf("want one volume of machine %d, got %q", id, files)
	}

	out := backup{diskName: filepath.Base(files[0])}
	out.disk, err = os.ReadFile(files[0])
	s.must(err)

	s.use(func(rpc *golibvirt.Libvirt) error {
		d, _ := s.find(rpc, id)

		isPersistent, err := rpc.DomainIsPersistent(d)
		if isPersistent == 1 {
			out.definition, err = rpc.DomainGetXMLDesc(d, golibvirt.DomainXMLInactive|golibvirt.DomainXMLSecure)
		}

		return err
	})

	return out
}

// restore writes the disk, with rename applied to its name, and defines the domain after the changes.
func (s *site) restore(b backup, rename func(string) string, changes ...func(*libvirtxml.Domain)) {
	s.t.Helper()

	info, err := os.Stat(s.dir)
	s.must(err)

	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		s.t.Fatal("the pool has no owner")
	}

	path := filepath.Join(s.dir, rename(b.diskName))
	s.must(os.WriteFile(path, b.disk, 0o600))
	s.must(os.Chown(path, int(owner.Uid), int(owner.Gid)))

	s.use(func(rpc *golibvirt.Libvirt) error {
		err := rpc.StoragePoolRefresh(s.pool(rpc), 0)
		if err != nil || b.definition == "" {
			return err
		}

		var parsed libvirtxml.Domain

		s.must(parsed.Unmarshal(b.definition))

		for _, change := range changes {
			change(&parsed)
		}

		text, err := parsed.Marshal()
		s.must(err)

		_, err = rpc.DomainDefineXMLFlags(text, 0)

		return err
	})
}

// listObjects returns the names of all domains of the case and of the volumes of its pool.
func (s *site) listObjects() []string {
	s.t.Helper()

	var out []string

	s.use(func(rpc *golibvirt.Libvirt) error {
		for _, d := range s.domains(rpc) {
			out = append(out, d.reference.Name)
		}

		volumes, _, err := rpc.StoragePoolListAllVolumes(s.pool(rpc), 1, 0)
		for _, v := range volumes {
			out = append(out, v.Name)
		}

		return err
	})
	slices.Sort(out)

	return out
}

// A host is restored from a backup that was taken while machines ran. A machine whose claim is gone is listed, also if only its
// disk is back, so that the operator deletes it. Copies under other names are neither listed nor changed, and no machine gets
// the ID in the name of a copy.
func TestRestoredHost(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	running := s.connectUntilEnd()
	transient, defined := newTransientSpec(), newTransientSpec()
	defined.Owner.Name, defined.Owner.UID, defined.Shape.Linked = "defined", "uid-defined", false
	backups := map[int]backup{}

	for _, spec := range []*hypervisor.MachineSpec{&transient, &defined} {
		_, err := conformance.Create(t.Context(), running, spec, newSeed)
		s.must(err)

		backups[spec.ID] = s.takeBackup(spec.ID)
		s.must(conformance.Delete(t.Context(), running, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))
	}

	copyOf := func(name string) string { return "copy-of-" + name }
	s.restore(backups[transient.ID], copyOf)
	s.restore(backups[defined.ID], copyOf, func(d *libvirtxml.Domain) {
		d.Name, d.UUID = fmt.Sprint("copy-", s.config.IDMin), ""
		source := d.Devices.Disks[0].Source.File
		source.File = filepath.Join(s.dir, copyOf(filepath.Base(source.File)))
	})

	before := s.listObjects()

	for _, p := range []hypervisor.Provider{running, s.connectUntilEnd()} {
		for id, b := range backups {
			s.restore(b, strings.Clone)
			s.deleteRestored(p, id)

			if after := s.listObjects(); !slices.Equal(after, before) {
				t.Errorf("want only the copies left:\n%q\ngot:\n%q", before, after)
			}
		}

		reserved, err := p.Reserve(t.Context(), newTransientSpec())
		if err != nil || reserved.Exists || reserved.ID == s.config.IDMin {
			t.Errorf("want another ID than that of the copy, got %+v (%v)", reserved, err)
		}
	}
}

// deleteRestored checks that only the machine with the ID is listed, and deletes it.
func (s *site) deleteRestored(p hypervisor.Provider, id int) {
	s.t.Helper()

	found, err := p.List(s.t.Context())
	if err != nil || len(found) != 1 || found[0].ID != id {
		s.t.Errorf("want only machine %d listed, got %+v (%v)", id, found, err)
	}

	for _, m := range found {
		s.must(conformance.Delete(s.t.Context(), p, hypervisor.MachineRef{ID: m.ID, Owner: m.Owner}))
	}
}
