// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"errors"
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

// backup is a backup of a host: the disks of machines by their names, and the definitions of domains.
type backup struct {
	disks       map[string][]byte
	definitions []string
}

// takeBackup reads the disks and the definitions of the machines with the IDs.
func (s *site) takeBackup(ids ...int) backup {
	s.t.Helper()

	out := backup{disks: map[string][]byte{}}

	for _, id := range ids {
		files, err := filepath.Glob(filepath.Join(s.dir, fmt.Sprintf("hf-*-%d-*", id)))
		s.must(err)

		for _, file := range files {
			content, err := os.ReadFile(file)
			s.must(err)

			out.disks[filepath.Base(file)] = content
		}

		s.use(func(rpc *golibvirt.Libvirt) error {
			d, _ := s.find(rpc, id)

			text, err := rpc.DomainGetXMLDesc(d, golibvirt.DomainXMLInactive|golibvirt.DomainXMLSecure)
			if isPersistent, persistentErr := rpc.DomainIsPersistent(d); isPersistent == 1 {
				out.definitions = append(out.definitions, text)
				err = errors.Join(err, persistentErr)
			}

			return err
		})
	}

	return out
}

// restore writes the disks, with rename applied to their names, and defines the domains, with change applied to them.
func (s *site) restore(b backup, rename func(string) string, change func(*libvirtxml.Domain)) {
	s.t.Helper()

	info, err := os.Stat(s.dir)
	s.must(err)

	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		s.t.Fatal("the pool has no owner")
	}

	for name, content := range b.disks {
		path := filepath.Join(s.dir, rename(name))
		s.must(os.WriteFile(path, content, 0o600))
		s.must(os.Chown(path, int(owner.Uid), int(owner.Gid)))
	}

	s.use(func(rpc *golibvirt.Libvirt) error {
		err := rpc.StoragePoolRefresh(s.pool(rpc), 0)

		for _, text := range b.definitions {
			var parsed libvirtxml.Domain

			s.must(parsed.Unmarshal(text))
			change(&parsed)

			text, marshalErr := parsed.Marshal()
			_, defineErr := rpc.DomainDefineXMLFlags(text, 0)
			err = errors.Join(err, marshalErr, defineErr)
		}

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

	for _, spec := range []*hypervisor.MachineSpec{&transient, &defined} {
		_, err := conformance.Create(t.Context(), running, spec, newSeed)
		s.must(err)
	}

	b := s.takeBackup(transient.ID, defined.ID)
	if len(b.disks) != 2 || len(b.definitions) != 1 {
		t.Fatalf("the backup has %d disks and %d definitions, want two and one", len(b.disks), len(b.definitions))
	}

	for _, spec := range []hypervisor.MachineSpec{transient, defined} {
		s.must(conformance.Delete(t.Context(), running, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))
	}

	copyOf := func(name string) string { return "copy-of-" + name }
	s.restore(b, copyOf, func(d *libvirtxml.Domain) {
		d.Name, d.UUID = fmt.Sprint("copy-", s.config.IDMin), ""
		source := d.Devices.Disks[0].Source.File
		source.File = filepath.Join(s.dir, copyOf(filepath.Base(source.File)))
	})

	before := s.listObjects()

	for name, p := range map[string]hypervisor.Provider{"the running process": running, "the next process": s.connectUntilEnd()} {
		s.restore(b, strings.Clone, func(*libvirtxml.Domain) {})

		found, err := p.List(t.Context())
		s.must(err)

		var ids []int

		for _, m := range found {
			ids = append(ids, m.ID)
			s.must(conformance.Delete(t.Context(), p, hypervisor.MachineRef{ID: m.ID, Owner: m.Owner}))
		}

		if slices.Sort(ids); !slices.Equal(ids, []int{transient.ID, defined.ID}) {
			t.Errorf("%s: want machines %d and %d listed, got %+v", name, transient.ID, defined.ID, found)
		}

		if after := s.listObjects(); !slices.Equal(after, before) {
			t.Errorf("%s: want only the copies left:\n%q\ngot:\n%q", name, before, after)
		}

		reserved, err := p.Reserve(t.Context(), newTransientSpec())
		if err != nil || reserved.Exists || reserved.ID == s.config.IDMin {
			t.Errorf("%s: want another ID than that of the copy, got %+v (%v)", name, reserved, err)
		}
	}
}
