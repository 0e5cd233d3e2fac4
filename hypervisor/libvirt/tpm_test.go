// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	golibvirt "github.com/digitalocean/go-libvirt"
	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
)

// defineTPMTemplate defines a template with an emulated TPM, and starts it once, so that the TPM has its seeds.
func (s *site) defineTPMTemplate(name string) (tpm string) {
	s.t.Helper()

	s.mu.Lock()
	s.foreign = append(s.foreign, name)
	s.mu.Unlock()

	s.use(func(rpc *golibvirt.Libvirt) error {
		d, err := rpc.DomainDefineXMLFlags(fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>64</memory>
<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%s/%s'/><target dev='vda' bus='virtio'/></disk>
<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm></devices></domain>`, name, s.dir, template), 0)
		s.must(err)
		s.must(rpc.DomainCreate(d))
		s.must(rpc.DomainDestroy(d))

		tpm = s.readTPM(d)

		return nil
	})

	return tpm
}

// readTPM returns the state of the domain's TPM, and "" if it has none.
func (s *site) readTPM(d golibvirt.Domain) string {
	s.t.Helper()

	state, err := shared.ReadTPM(uuid.UUID(d.UUID).String())
	s.must(err)

	return string(state)
}

// A machine gets a TPM of its own if it needs one, or if its template has one. The TPM is deleted with the machine. The
// host's authority has certified its key.
func TestTPM(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	p := s.connect(t, hypervisor.Options{OperatorUID: "operator"})
	t.Cleanup(p.Close)

	seen := map[string]string{s.defineTPMTemplate("tpm-" + s.name): "the template"}

	for n, c := range []struct {
		template hypervisor.TemplateRef
		needsTPM bool
		hasTPM   bool
	}{
		{hypervisor.TemplateRef{Name: template}, true, true},
		{hypervisor.TemplateRef{Kind: hypervisor.TemplateDomain, Name: "tpm-" + s.name}, true, true},
		{hypervisor.TemplateRef{Kind: hypervisor.TemplateDomain, Name: "tpm-" + s.name}, false, true},
		{hypervisor.TemplateRef{Name: template}, false, false},
	} {
		spec := hypervisor.MachineSpec{
			Owner: hypervisor.Owner{Namespace: "ci", Name: fmt.Sprint("claim-", n), UID: fmt.Sprint("uid-", n)}, Template: c.template,
			Shape: hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true, TPM: c.needsTPM},
		}

		_, err := p.Resolve(t.Context(), spec.Template, spec.Shape)
		s.must(err)

		_, err = conformance.Create(t.Context(), p, &spec, newSeed)
		s.must(err)

		var machine golibvirt.Domain

		s.use(func(rpc *golibvirt.Libvirt) error {
			machine, _ = s.find(rpc, spec.ID)

			return nil
		})

		state := s.readTPM(machine)
		if (state != "") != c.hasTPM {
			t.Errorf("machine %d has a TPM: %t", n, state != "")
		}

		if other, isKnown := seen[state]; isKnown {
			t.Errorf("machine %d has the TPM of %s", n, other)
		}

		seen[state] = spec.Owner.Name

		s.must(conformance.Delete(t.Context(), p, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))

		if s.readTPM(machine) != "" {
			t.Errorf("the TPM of machine %d is left", n)
		}
	}

	if _, err := os.Stat(filepath.Join(shared.Dir, "tpm-ca", "issuercert.pem")); err != nil {
		t.Errorf("the host's authority has certified no key: %v", err)
	}
}
